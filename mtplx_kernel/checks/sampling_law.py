"""Whether sampled tokens follow the model's own distribution, whatever drafts stood against them.

The next token of one prompt is drawn with many seeds, and Pearson's test compares the draws with
the softmax of the model's logits. The second tokens after the commonest first one are tested too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtplx_kernel.checks.asking import ask
from mtplx_kernel.checks.chi_square import Fit, fit, survival
from mtplx_kernel.checks.comparing import Comparer, Result, Sampling
from mtplx_kernel.decoding.params import Acceptance
from mtplx_kernel.engine.request import Generation
from mtplx_kernel.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtplx_kernel.engine.engine import Engine

TOKENS = 3
"""The first cycle then drafts two: the first token is held against a draft, and may have others
after it."""
LEAST_P = 1e-4
"""Draws from the right law fall below this once in ten thousand checks."""
_END = -1


@dataclass(frozen=True, slots=True)
class LawCheck:
    """The draws of one acceptance rule.

    Attributes
    ----------
    draws
        How many seeds were drawn with.
    drafted
        In how many of them there were drafts.
    equal
        How many gave the ids of mode ar; None for rules that promise the law only.
    unexplained
        How many of the others part from mode ar by more than rounding explains.
    problem
        The error that a draw ended with; none came after it.
    """

    acceptance: str
    temperature: float
    draws: int
    drafted: int
    equal: int | None
    unexplained: int
    fit: Fit
    problem: str | None = None

    @property
    def result(self) -> Result:
        """Whether the law holds, and, where it is promised, the ids are those of mode ar."""
        whole = self.problem is None and not self.unexplained
        if not whole or self.fit.p_value < LEAST_P:
            return Result.FAILED
        return Result.HOLDS if self.fit.freedom else Result.UNTESTED


def check_law(
    engine: Engine,
    comparer: Comparer,
    ids: Sequence[int],
    acceptance: Acceptance,
    *,
    temperature: float,
    draws: int,
    done: Callable[[], object],
) -> LawCheck:
    """Draw the tokens after a prompt with seeds 0, 1, ... and test them.

    Parameters
    ----------
    ids
        The prompt.
    done
        Called after each draw.

    """
    found: list[Generation] = []
    equal = unexplained = 0
    problem = None
    for seed in range(draws):
        sampling = Sampling(temperature, seed)
        try:
            drawn = _drawn(engine, ids, sampling, "mtp", acceptance)
            if acceptance is Acceptance.COUPLED:
                ar = _drawn(engine, ids, sampling, "ar", acceptance)
                parting = comparer.divergence(ids, ar, drawn, sampling)
                equal += parting is None
                unexplained += parting is not None and not parting.explained
        except RequestFailed as error:
            problem = str(error)
            break
        found.append(drawn)
        done()
    return LawCheck(
        acceptance=str(acceptance),
        temperature=temperature,
        draws=len(found),
        drafted=sum(bool(sum(g.stats.drafted_by_depth or ())) for g in found),
        equal=equal if acceptance is Acceptance.COUPLED else None,
        unexplained=unexplained,
        fit=Fit(0.0, 0, 0.0) if problem else _fit(engine, ids, found, temperature),
        problem=problem,
    )


def _drawn(
    engine: Engine, ids: Sequence[int], sampling: Sampling, mode: str, acceptance: Acceptance
) -> Generation:
    return ask(
        engine,
        ids,
        mode=mode,
        depth=TOKENS - 1,
        acceptance=acceptance,
        max_tokens=TOKENS,
        temperature=sampling.temperature,
        seed=sampling.seed,
    )


def _fit(
    engine: Engine, ids: Sequence[int], found: Sequence[Generation], temperature: float
) -> Fit:
    """The test of the first tokens, and of the second ones after the commonest first."""
    firsts = Counter(_outcome(g, 0) for g in found)
    fits = [fit(firsts, _law(engine, ids, temperature))]
    first = firsts.most_common(1)[0][0]
    if first != _END:
        seconds = Counter(_outcome(g, 1) for g in found if _outcome(g, 0) == first)
        fits.append(fit(seconds, _law(engine, [*ids, first], temperature)))
    # Independent statistics with chi-square laws add up to another.
    statistic, freedom = sum(f.statistic for f in fits), sum(f.freedom for f in fits)
    return Fit(statistic, freedom, survival(statistic, freedom) if freedom else 1.0)


def _outcome(generation: Generation, position: int) -> int:
    ids = generation.token_ids
    return ids[position] if position < len(ids) else _END


def _law(engine: Engine, ids: Sequence[int], temperature: float) -> dict[int, float]:
    """Probabilities of the next token at a temperature; all end tokens are one outcome."""
    facts = engine.facts
    logprobs = engine.inspect(ids, top=facts.vocabulary)
    best = max(logprob for _, logprob in logprobs)
    weights = {i: math.exp((logprob - best) / temperature) for i, logprob in logprobs}
    total = math.fsum(weights.values())
    law = {i: weight / total for i, weight in weights.items() if i not in facts.end_ids}
    law[_END] = sum(weights.get(i, 0.0) for i in facts.end_ids) / total
    return law
