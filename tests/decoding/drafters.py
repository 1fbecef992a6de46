"""Drafters whose guesses are forced, right or wrong where a test wants them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import mlx.core as mx

from mtplx_kernel.decoding.drafting import Drafts, Slotless
from mtplx_kernel.decoding.row import Row
from tests.tiny import END_ID, VOCABULARY

Guess = Callable[[list[int], int], list[int]]
"""From the true continuation and a depth to the drafts."""


class ForcedDrafter(Slotless):
    """Knows what each row's true output is and distorts it."""

    name = "forced"

    def __init__(self, truth: dict[str, list[int]], guess: Guess) -> None:
        self._truth = truth
        self._guess = guess
        self.drafted = self.accepted = 0

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """The truth is known already."""

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        guesses = [
            self._guess(self._truth[row.request_id][len(row.output) :], depth)[:depth]
            for row, depth in zip(rows, depths, strict=True)
        ]
        return Drafts.of(guesses)

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        self.drafted += drafted
        self.accepted += len(tokens) - 1

    def catch_up(self, rows: Sequence[Row]) -> None:
        """There is nothing to work off."""

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Nothing is kept."""


def right(truth: list[int], depth: int) -> list[int]:
    return truth[:depth]


def wrong(truth: list[int], depth: int) -> list[int]:
    return [(t + 1) % VOCABULARY for t in truth[:depth]]


def wrong_at(position: int) -> Guess:
    def guess(truth: list[int], depth: int) -> list[int]:
        drafts = truth[:depth]
        if position < len(drafts):
            drafts[position] = (drafts[position] + 7) % VOCABULARY
        return drafts

    return guess


def with_end(truth: list[int], depth: int) -> list[int]:
    return [truth[0], END_ID, *truth[1:]][:depth] if truth else [END_ID]


def random_guess(seed: int) -> Guess:
    def guess(truth: list[int], depth: int) -> list[int]:
        source = random.Random(f"{seed} {len(truth)} {depth}")  # the same in every test order
        drafts = truth[: source.randint(0, depth)]
        return [t if source.random() < 0.6 else source.randrange(VOCABULARY) for t in drafts]

    return guess


GUESSES: dict[str, Guess] = {
    "right": right,
    "wrong": wrong,
    "wrong_at_0": wrong_at(0),
    "wrong_at_1": wrong_at(1),
    "wrong_at_2": wrong_at(2),
    "random": random_guess(11),
    "end_inside": with_end,
}
