"""Which noise may be used where: by enumeration, noise that is used twice shows in the law.

Each number of noise is a uniform one, known by its key. What a cycle does with it narrows the
interval that it lies in; a later use of the same number starts from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.decoding.acceptance import BLOCK, REJECTION, chances
from tests.decoding.toy import Context, shares

VOCABULARY, LENGTH, DEPTH = 3, 4, 2
PROMPT: Context = (1, 1)
Key = tuple[object, ...]
Noise = dict[Key, tuple[float, float]]


class Keys:
    """The keys of the real noise, with a cycle's start in each."""

    def draft(self, start: int, offset: int) -> Key:
        return "draft", start, offset

    def test(self, start: int, offset: int) -> Key:
        return "accept", start, offset

    def token(self, start: int, accepted: int) -> Key:
        return "token", start


class JudgesWithTheDraftsNoise(Keys):
    def test(self, start: int, offset: int) -> Key:
        return self.draft(start, offset)


class CorrectsWithTheDraftsNoise(Keys):
    def token(self, start: int, accepted: int) -> Key:
        return self.draft(start, accepted)


class CorrectsWithTheTestsNoise(Keys):
    def token(self, start: int, accepted: int) -> Key:
        return self.test(start, accepted)


class OneTestForAll(Keys):
    def test(self, start: int, offset: int) -> Key:
        return "accept", start


class OneNoiseForAllDrafts(Keys):
    def draft(self, start: int, offset: int) -> Key:
        return "draft", start


class TheSameInEachCycle(Keys):
    def draft(self, start: int, offset: int) -> Key:
        return "draft", offset


class ByPosition(Keys):
    """Noise of the absolute position, whichever cycle comes to it."""

    def draft(self, start: int, offset: int) -> Key:
        return "draft", start + offset

    def test(self, start: int, offset: int) -> Key:
        return "accept", start + offset


def p_after(context: Context) -> Any:
    return shares(("target", context), VOCABULARY)


def q_after(context: Context) -> Any:
    return shares(("drafter", context), VOCABULARY)


@cache
def decisions(rule: str, context: Context, drafts: Context) -> tuple[list[float], list[Any]]:
    """Each test's chance, and what the token is drawn from after each number of kept drafts."""
    befores = [context + drafts[:i] for i in range(len(drafts) + 1)]
    law = chances(
        rule,
        mx.array(np.array([p_after(b) for b in befores]), dtype=mx.float64),
        mx.array(drafts, dtype=mx.int32),
        mx.array(np.array([q_after(b) for b in befores[:-1]]), dtype=mx.float64),
        None,
    )
    tests: Any = law.tests.tolist()
    weights = [np.array(law.residual(mx.array(k))) for k in range(len(drafts) + 1)]
    return tests, [w / w.sum() for w in weights]


def kept(rule: str, succeeded: Sequence[bool]) -> int:
    if rule == REJECTION:
        return [*succeeded, False].index(False)
    return max((i + 1 for i, success in enumerate(succeeded) if success), default=0)


def uses(noise: Noise, key: Key, shares: Sequence[float]) -> Iterator[tuple[int, float, Noise]]:
    """What one number of noise may choose, given all that is known of it."""
    low, high = noise.get(key, (0.0, 1.0))
    edge = 0.0
    for choice, share in enumerate(shares):
        a, b = max(low, edge), min(high, edge + share)
        edge += share
        if b - a > 1e-14:
            yield choice, (b - a) / (high - low), {**noise, key: (a, b)}


def drawn(
    keys: Keys, noise: Noise, context: Context, depth: int, offset: int = 0
) -> Iterator[tuple[Context, float, Noise]]:
    """All drafts."""
    if offset == depth:
        yield (), 1.0, noise
        return
    start = len(context) - offset
    for draft, chance, known in uses(noise, keys.draft(start, offset), q_after(context)):
        for later, rest, all_known in drawn(keys, known, (*context, draft), depth, offset + 1):
            yield (draft, *later), chance * rest, all_known


def judged(
    keys: Keys, noise: Noise, start: int, tests: Sequence[float], offset: int = 0
) -> Iterator[tuple[tuple[bool, ...], float, Noise]]:
    """All ways for the tests to turn out."""
    if offset == len(tests):
        yield (), 1.0, noise
        return
    test = tests[offset]
    for failed, chance, known in uses(noise, keys.test(start, offset), (test, 1 - test)):
        for later, rest, all_known in judged(keys, known, start, tests, offset + 1):
            yield (not failed, *later), chance * rest, all_known


def output_law(
    rule: str, keys: Keys, output: Context = (), noise: Noise | None = None
) -> dict[Context, float]:
    """The law of the first tokens; each cycle leaves something known of the noise."""
    if len(output) == LENGTH:
        return {output: 1.0}
    law: dict[Context, float] = {}
    context = PROMPT + output
    start, depth = len(context), min(DEPTH, LENGTH - len(output) - 1)
    for drafts, c1, after_drafts in drawn(keys, noise or {}, context, depth):
        tests, weights = decisions(rule, context, drafts)
        for succeeded, c2, after_tests in judged(keys, after_drafts, start, tests):
            accepted = kept(rule, succeeded)
            key = keys.token(start, accepted)
            for token, c3, known in uses(after_tests, key, weights[accepted]):
                longer = (*output, *drafts[:accepted], token)
                for whole, rest in output_law(rule, keys, longer, known).items():
                    law[whole] = law.get(whole, 0.0) + c1 * c2 * c3 * rest
    return law


def distance_to_the_target(rule: str, keys: Keys) -> float:
    """Total variation."""
    law = output_law(rule, keys)
    distance = 0.0
    for output in product(range(VOCABULARY), repeat=LENGTH):
        exact = np.prod([p_after(PROMPT + output[:i])[t] for i, t in enumerate(output)])
        distance += abs(law.get(output, 0.0) - float(exact)) / 2
    return distance


@pytest.mark.parametrize("rule", [REJECTION, BLOCK])
def test_the_real_keys_keep_the_law(rule: str) -> None:
    assert distance_to_the_target(rule, Keys()) < 1e-12


@pytest.mark.parametrize(
    "keys",
    [
        JudgesWithTheDraftsNoise,
        CorrectsWithTheDraftsNoise,
        CorrectsWithTheTestsNoise,
        OneTestForAll,
        OneNoiseForAllDrafts,
        TheSameInEachCycle,
    ],
)
@pytest.mark.parametrize("rule", [REJECTION, BLOCK])
def test_noise_used_twice_is_caught(rule: str, keys: type[Keys]) -> None:
    assert distance_to_the_target(rule, keys()) > 1e-3


def test_block_needs_new_noise_in_each_cycle() -> None:
    """Its decision tells of all drafts, also of those that it drops; rejection's does not."""
    assert distance_to_the_target(REJECTION, ByPosition()) < 1e-12
    assert distance_to_the_target(BLOCK, ByPosition()) > 1e-3
