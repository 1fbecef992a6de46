"""The law under `rejection` and `block` is the target's, by enumeration; broken rules are caught.

The decisions are enumerated with the probabilities that the sampler itself uses, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.decoding.acceptance import BLOCK, REJECTION, Chances, chances
from tests.decoding.toy import Context, shares

VOCABULARY, LENGTH = 3, 5
PROMPT: Context = (1, 1)
RULES = (REJECTION, BLOCK)
EXACT, CAUGHT = 1e-12, 1e-3
Law = dict[Context, float]
Drafts = tuple[int, ...]


def target(context: Context) -> Any:
    return shares(("target", context), VOCABULARY)


@dataclass(frozen=True)
class Drafter:
    """A drafter with a distribution of its own.

    Attributes
    ----------
    q
        From everything before a draft to the probabilities that it is drawn with.
    columns
        The ids that q is over; None where that is all.
    certain
        Whether the drafts are not drawn at all.
    most
        From everything before a draft to whether there may be one.
    """

    q: Callable[[Context], Any]
    columns: tuple[int, ...] | None = None
    certain: bool = False
    goes_on: Callable[[Context], bool] = lambda context: True

    def draws(self, context: Context, depth: int) -> Iterator[tuple[Drafts, float]]:
        """All drafts and their probabilities."""
        if depth == 0 or not self.goes_on(context):
            yield (), 1.0
            return
        for column, share in enumerate(self.q(context)):
            draft = self.columns[column] if self.columns else column
            if share > 0:
                for later, rest in self.draws((*context, draft), depth - 1):
                    yield (draft, *later), share * rest


def alone(token: int) -> Any:
    return np.eye(VOCABULARY)[token]


DRAFTERS = {
    "skewed": Drafter(lambda c: shares(("skewed", c), VOCABULARY)),
    "near": Drafter(lambda c: (target(c) + shares(("near", c), VOCABULARY)) / 2),
    "equal": Drafter(target),
    "reduced": Drafter(lambda c: shares(("reduced", c), 2), columns=(2, 0)),
    "certain": Drafter(lambda c: alone(int(shares(c, VOCABULARY).argmax())), certain=True),
    "of_uneven_depth": Drafter(
        lambda c: shares(("skewed", c), VOCABULARY), goes_on=lambda c: sum(c) % 3 > 0
    ),
    "of_another_world": Drafter(lambda c: alone(0) if sum(c) % 2 else alone(2)),
}


def judged(rule: str, drafter: Drafter, context: Context, drafts: Drafts) -> Chances:
    """The real rule on the toy, in float64."""
    befores = [context + drafts[:i] for i in range(len(drafts) + 1)]
    width = len(drafter.columns or range(VOCABULARY))
    p = np.array([target(before) for before in befores])
    q = np.array([drafter.q(before) for before in befores[:-1]]).reshape(-1, width)
    return chances(
        rule,
        mx.array(p, dtype=mx.float64),
        mx.array(drafts, dtype=mx.int32),
        None if drafter.certain else mx.array(q, dtype=mx.float64),
        mx.array(drafter.columns) if drafter.columns else None,
    )


def outcomes(law: Chances, drafts: Drafts) -> Iterator[tuple[int, int, float]]:
    """All numbers of kept drafts, tokens after them, and their probabilities."""
    tests: Any = law.tests.tolist()
    kept: dict[int, float] = {}
    for succeeded in product((False, True), repeat=len(drafts)):
        chance = float(np.prod([t if s else 1 - t for s, t in zip(succeeded, tests, strict=True)]))
        if chance > 0:
            accepted: Any = law.accepted(mx.array(succeeded, dtype=mx.bool_)).item()
            kept[accepted] = kept.get(accepted, 0.0) + chance
    for accepted, chance in kept.items():
        weights = np.array(law.residual(mx.array(accepted)))
        for token, weight in enumerate(weights / weights.sum()):
            if weight > 0:
                yield accepted, token, chance * float(weight)


Judge = Callable[[Context, Drafts], Chances]


def output_law(judge: Judge, drafter: Drafter, depth: int) -> Law:
    """The law of the first tokens, over as many cycles as they take.

    One cycle's noise is not used again, so that a cycle depends on the text before it alone.
    """

    @cache
    def after(output: Context) -> Law:
        if len(output) == LENGTH:
            return {output: 1.0}
        law: Law = {}
        context = PROMPT + output
        for drafts, share in drafter.draws(context, min(depth, LENGTH - len(output) - 1)):
            for accepted, token, chance in outcomes(judge(context, drafts), drafts):
                for whole, rest in after((*output, *drafts[:accepted], token)).items():
                    law[whole] = law.get(whole, 0.0) + share * chance * rest
        return law

    return after(())


def exact_law() -> Law:
    """The product of the target's conditional probabilities."""
    law: Law = {}
    for output in product(range(VOCABULARY), repeat=LENGTH):
        law[output] = float(
            np.prod([target(PROMPT + output[:i])[token] for i, token in enumerate(output)])
        )
    return law


def distance(one: Law, other: Law) -> float:
    """Total variation."""
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one | other) / 2


def honest(rule: str, drafter: Drafter) -> Judge:
    return lambda context, drafts: judged(rule, drafter, context, drafts)


def test_the_toy_is_worth_testing() -> None:
    """The law sums to one and depends on the past; some tokens that q may give never come."""
    exact = exact_law()
    assert sum(exact.values()) == pytest.approx(1, abs=EXACT)
    assert len({round(p, 9) for p in exact.values()}) >= 20
    contexts = [PROMPT + c for n in range(4) for c in product(range(VOCABULARY), repeat=n)]
    assert sum(bool((target(c) == 0).any()) for c in contexts) >= 5
    ruled_out = [(target(c) == 0) & (DRAFTERS["skewed"].q(c) > 0) for c in contexts]
    assert sum(bool(r.any()) for r in ruled_out) >= 3
    missing = [target(c)[1] for c in contexts]
    assert max(missing) > 0.5


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_the_law_is_the_targets(rule: str, drafter: str, depth: int) -> None:
    d = DRAFTERS[drafter]
    assert distance(output_law(honest(rule, d), d, depth), exact_law()) < EXACT


Break = Callable[[Chances, Drafts], Chances]


class FromP(Chances):
    def residual(self, accepted: mx.array) -> mx.array:
        return self.target[accepted]


class BothWays(Chances):
    """Takes |p - q| for max(p - q, 0)."""

    def residual(self, accepted: mx.array) -> mx.array:
        return self.target[accepted] if self.all(accepted) else mx.abs(self.left(accepted))

    def all(self, accepted: mx.array) -> bool:
        return accepted.item() == self.draft.shape[0]

    def left(self, accepted: mx.array) -> mx.array:
        return self.share[accepted] * self.target[accepted] - self.draft[accepted]


class AlwaysTheBonus(Chances):
    """After a refusal, draws what follows the last draft."""

    def residual(self, accepted: mx.array) -> mx.array:
        return self.target[-1]


class Likeliest(Chances):
    def residual(self, accepted: mx.array) -> mx.array:
        weights = super().residual(accepted)
        return (weights == mx.max(weights)).astype(mx.float64)


class OnlyInColumns(Chances):
    """Leaves ids that the drafter does not know out of the correction."""

    def residual(self, accepted: mx.array) -> mx.array:
        weights = super().residual(accepted)
        if accepted.item() == self.draft.shape[0]:
            return weights
        known = weights * mx.array([1.0, 0.0, 1.0], dtype=mx.float64)
        return mx.where(mx.any(known > 0), known, weights)


class OneByOne(Chances):
    """Stops a block at its first test that fails."""

    def accepted(self, succeeded: mx.array) -> mx.array:
        return mx.sum(mx.cumprod(succeeded.astype(mx.int32)))


class LastThatSucceeds(Chances):
    """Takes a later success of rejection's own tests for a whole prefix."""

    def accepted(self, succeeded: mx.array) -> mx.array:
        return mx.max(mx.where(succeeded, mx.arange(1, succeeded.size + 1), 0))


def of_kind(kind: type[Chances]) -> Break:
    return lambda law, drafts: kind(law.rule, law.tests, law.target, law.draft, law.share)


def with_tests(tests: Callable[[Any, Any], Any]) -> Break:
    """Other test probabilities, from p and q at the drafts."""

    def broken(law: Chances, drafts: Drafts) -> Chances:
        at = np.arange(len(drafts))
        p, q = (np.array(a)[at, list(drafts)] for a in (law.target, law.draft))
        return replace(law, tests=mx.array(tests(p, q), dtype=mx.float64))

    return broken


def known_renormalised(law: Chances, drafts: Drafts) -> Chances:
    """Judges by p given that the drafter knows the id."""
    known = mx.array(np.array([1.0, 0.0, 1.0]), dtype=mx.float64)
    target = law.target * known
    total = mx.sum(target, axis=-1, keepdims=True)
    at = np.arange(len(drafts))
    p = np.array(mx.where(total > 0, target / total, 0))[at, list(drafts)]
    q = np.array(law.draft)[at, list(drafts)]
    return replace(law, tests=mx.array(np.minimum(p / q, 1), dtype=mx.float64))


def uncapped(law: Chances, drafts: Drafts) -> Chances:
    """Lets w exceed 1, so that a likely draft pays for an unlikely one after it."""
    at = np.arange(len(drafts))
    p, q = np.array(law.target), np.array(law.draft)
    share = np.cumprod(np.concatenate([[1.0], p[at, list(drafts)] / q[at, list(drafts)]]))
    left = np.maximum(share[1:-1, None] * p[1:-1] - q[1:], 0).sum(-1)
    whole = np.maximum(left + 1 - share[1:-1], left)
    tests = np.concatenate(
        [np.divide(left, whole, out=np.ones_like(left), where=whole > 0), np.minimum(share[-1:], 1)]
    )[: len(drafts)]
    return replace(
        law, tests=mx.array(tests, dtype=mx.float64), share=mx.array(share, dtype=mx.float64)
    )


def judges_by_share(law: Chances, drafts: Drafts) -> Chances:
    """Gives each prefix a test of probability w, as if no longer one could be kept instead."""
    return replace(law, tests=law.share[1:])


def residual_of_rejection(law: Chances, drafts: Drafts) -> Chances:
    return replace(law, share=mx.ones_like(law.share))


def whole_block_too(law: Chances, drafts: Drafts) -> Chances:
    """Keeps all with the last test of rejection in place of w."""
    last = mx.minimum(law.target[-2, drafts[-1]] / law.draft[-1, drafts[-1]], 1)
    return replace(law, tests=mx.concatenate([law.tests[:-1], last[None]]))


BROKEN: dict[str, tuple[str, str, Break]] = {
    "keeps all": (REJECTION, "skewed", with_tests(lambda p, q: np.ones_like(p))),
    "keeps with q/p": (
        REJECTION,
        "skewed",
        with_tests(lambda p, q: np.minimum(q / np.maximum(p, 1e-9), 1)),
    ),
    "keeps with p": (REJECTION, "skewed", with_tests(lambda p, q: p)),
    "keeps where p > q": (REJECTION, "skewed", with_tests(lambda p, q: (p >= q) * 1.0)),
    "q not normalised": (REJECTION, "reduced", with_tests(lambda p, q: np.minimum(2 * p / q, 1))),
    "correction from p": (REJECTION, "skewed", of_kind(FromP)),
    "correction from p of a point mass": (REJECTION, "certain", of_kind(FromP)),
    "correction from |p - q|": (REJECTION, "skewed", of_kind(BothWays)),
    "likeliest correction": (REJECTION, "skewed", of_kind(Likeliest)),
    "bonus after a refusal": (REJECTION, "skewed", of_kind(AlwaysTheBonus)),
    "goes on after a refusal": (REJECTION, "skewed", of_kind(LastThatSucceeds)),
    "missing ids lost": (REJECTION, "reduced", of_kind(OnlyInColumns)),
    "p renormalised to the known ids": (REJECTION, "reduced", known_renormalised),
    "block, correction from p": (BLOCK, "skewed", of_kind(FromP)),
    "block, correction of rejection": (BLOCK, "skewed", residual_of_rejection),
    "block, bonus after a refusal": (BLOCK, "skewed", of_kind(AlwaysTheBonus)),
    "block, w not held at 1": (BLOCK, "skewed", uncapped),
    "block, tests by w": (BLOCK, "skewed", judges_by_share),
    "block, one by one": (BLOCK, "skewed", of_kind(OneByOne)),
    "block, last test of rejection": (BLOCK, "skewed", whole_block_too),
    "block, missing ids lost": (BLOCK, "reduced", of_kind(OnlyInColumns)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_caught(name: str) -> None:
    rule, drafter, broken = BROKEN[name]
    d = DRAFTERS[drafter]

    def judge(context: Context, drafts: Drafts) -> Chances:
        law = judged(rule, d, context, drafts)
        return broken(law, drafts) if drafts else law

    assert distance(output_law(judge, d, 2), exact_law()) > CAUGHT


@pytest.mark.parametrize("rule", RULES)
def test_a_drafter_that_drops_an_unlikely_draft_is_caught(rule: str) -> None:
    """Whether there is a draft must not depend on what it is."""

    class Drops(Drafter):
        def draws(self, context: Context, depth: int) -> Iterator[tuple[Drafts, float]]:
            for drafts, share in super().draws(context, depth):
                if drafts and self.q((*context, *drafts[:-1]))[drafts[-1]] < 0.4:
                    drafts = drafts[:-1]
                yield drafts, share

    drops = Drops(DRAFTERS["skewed"].q)
    assert distance(output_law(honest(rule, drops), drops, 2), exact_law()) > CAUGHT
