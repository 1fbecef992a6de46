"""Whether answers are those of the serial scheduler, and how near a tie it was where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mtplx_kernel as mk
from benchmarks.arrivals import Ask
from benchmarks.served import PlanRun
from benchmarks.summary import first_difference
from mtplx_kernel.checks import margins
from mtplx_kernel.checks.comparing import noise_of
from mtplx_kernel.models.progress import ProgressBar

SHORTEST = 8
Question = tuple[tuple[int, ...], float, int]
"""What an answer depends on, but for its length: the prompt's ids, the temperature, the seed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the serial one.

    Attributes
    ----------
    times
        In how many runs it came.
    at
        The place of the first other token in the answer.
    margin
        How far the worse of the two tokens there is from the model's choice, in log-probability:
        the gap between the two largest, where both are those.
    """

    prompt: str
    times: int
    at: int
    margin: float


class SerialAnswers:
    """The reference answers: mode ar, one request after the other.

    Parameters
    ----------
    engine
        A loaded engine; its scheduler is changed.

    Attributes
    ----------
    tolerance
        The largest margin that the arithmetic of this engine explains.
    """

    def __init__(self, engine: mk.Engine) -> None:
        self._engine = engine
        self._answers: dict[Question, tuple[int, ...]] = {}
        self._asked: dict[Question, int] = {}
        facts, blas = engine.facts, engine.status()["blas"]
        self.tolerance = margins.tolerance(
            facts.precision, facts.device, blas["kind"], facts.family
        )

    def fitted(self, asks: Sequence[Ask]) -> list[Ask]:
        """The requests with answers no longer than the model itself makes them.

        What it says past its end repeats itself, which would flatter drafts. Very short answers
        go on to `SHORTEST` tokens, so that there is something to time.
        """
        longest: dict[Question, int] = {}
        for ask in asks:
            longest[_question(ask)] = max(ask.tokens, longest.get(_question(ask), 0))
        self._engine.configure(scheduler="serial")
        new = {q: tokens for q, tokens in longest.items() if self._asked.get(q, 0) < tokens}
        with ProgressBar(total=len(new), desc="serial answers", unit="run") as bar:
            for question, tokens in new.items():
                self._answers[question] = self._answer(question, tokens)
                self._asked[question] = tokens
                bar.update()
        return [
            replace(ask, tokens=min(ask.tokens, len(self._answers[_question(ask)]))) for ask in asks
        ]

    def differences(self, runs: Sequence[PlanRun]) -> list[Difference]:
        """Every answer of some runs that is not the serial one; equal ones are counted together."""
        times: dict[tuple[Ask, int, int], int] = {}
        for run in runs:
            for served in run.served:
                expected = self._answers[_question(served.ask)][: served.ask.tokens]
                if served.ids != expected:
                    at = first_difference(expected, served.ids)
                    key = served.ask, at, served.ids[at]
                    times[key] = times.get(key, 0) + 1
        return [
            Difference(ask.prompt.name, count, at, self._margin(ask, at, token))
            for (ask, at, token), count in times.items()
        ]

    def _answer(self, question: Question, tokens: int) -> tuple[int, ...]:
        ids, temperature, seed = question
        options: dict[str, Any] = {"mode": "ar", "temperature": temperature, "seed": seed}
        options["prefix_cache"] = False
        found = self._engine.generate(list(ids), max_tokens=tokens, **options).token_ids
        least = min(SHORTEST, tokens)
        if len(found) >= least:
            return found
        return self._engine.generate(
            list(ids), max_tokens=least, ignore_eos=True, **options
        ).token_ids

    def _margin(self, ask: Ask, at: int, found: int) -> float:
        expected = self._answers[_question(ask)]
        before = [*ask.prompt.ids, *expected[:at]]
        size = self._engine.facts.vocabulary
        logprobs = self._engine.inspect(before, top=size)
        noise = noise_of(ask.seed, len(before), size) if ask.temperature else ()
        # End tokens are passed over here, so each is a token like any other.
        scores = margins.Scores.of(logprobs, (), ask.temperature, noise)
        return scores.margin(expected[at], found)


def _question(ask: Ask) -> Question:
    return ask.prompt.ids, ask.temperature, ask.seed
