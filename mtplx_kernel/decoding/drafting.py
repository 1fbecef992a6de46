"""Drafters guess the next tokens. They can change the speed only, never the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mtplx_kernel.decoding.depth import FLAT, PROBE_EVERY, CostCurve, Rate, best_depth
from mtplx_kernel.decoding.row import Row

NGRAM_SIZES = (4, 3, 2)
FIRST_PRIOR = 0.5
"""How often a guess is believed to be right before any was tried."""
LONG_DECAY = 0.99


class Drafter(Protocol):
    """The seam of the decode step that drafts come through."""

    name: str

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[int]]:
        """Guess at most `depths[i]` tokens that follow `rows[i].ids`, for each row."""
        ...

    def observe(self, row: Row, drafted: int, accepted: int) -> None:
        """Learn how many of a row's last drafts were right."""
        ...

    def release(self, row: Row) -> None:
        """Forget a row that ended."""
        ...


class LookupDrafter:
    """Guesses that the text repeats itself: what followed the same n-gram before, follows again.

    Works for every model and costs no forward. Of the longest n-gram that is worth it, as many
    tokens are copied as promise the most tokens a second; a row whose request fixed its depth is
    given that many.

    Parameters
    ----------
    curve
        What a verify costs.
    """

    name = "lookup"

    def __init__(self, curve: CostCurve = FLAT) -> None:
        self._curve = curve
        self._texts: dict[str, _Text] = {}
        self._rates = {n: Rate(LONG_DECAY) for n in NGRAM_SIZES}

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[int]]:
        """Guess from each row's own prompt and output."""
        return [self._guess(row, depth) for row, depth in zip(rows, depths, strict=True)]

    def observe(self, row: Row, drafted: int, accepted: int) -> None:
        """Update the rates of the n-gram size that the last guess came from."""
        if drafted:
            text = self._text(row)
            text.judged_at = len(row.ids)
            text.rates[text.used].observe(drafted, accepted)
            self._rates[text.used].observe(drafted, accepted)

    def release(self, row: Row) -> None:
        """Drop the row's n-grams."""
        self._texts.pop(row.request_id, None)

    def _guess(self, row: Row, most: int) -> list[int]:
        text = self._text(row)
        text.extend(row.ids)
        for n in NGRAM_SIZES:
            start = text.after.get(tuple(row.ids[-n:])) if len(row.ids) >= n else None
            depth = 0 if start is None else self._depth(row, text, n, most)
            if start is not None and depth:
                text.used = n
                return _continuation(row.ids, start, depth)
        return []

    def _depth(self, row: Row, text: _Text, n: int, most: int) -> int:
        if row.params.depth is not None or most == 0:
            return most
        rate = text.rates[n].given(self._rates[n].given(FIRST_PRIOR))
        depth = best_depth(self._curve, rate, most, pending=len(row.ids) - row.committed)
        due = len(row.ids) - text.judged_at >= PROBE_EVERY
        return 1 if depth == 0 and due else depth

    def _text(self, row: Row) -> _Text:
        return self._texts.setdefault(row.request_id, _Text(judged_at=len(row.ids)))


@dataclass(slots=True)
class _Text:
    """Where each n-gram of one request was last followed by something, and what that was worth.

    Attributes
    ----------
    used
        The n-gram size that the last guess came from.
    judged_at
        How long the text was when a guess was last verified: after a while one is tried again,
        whatever the rates say. A guess that is made but not verified leaves it due.
    """

    judged_at: int
    indexed: int = 0
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    rates: dict[int, Rate] = field(default_factory=lambda: {n: Rate() for n in NGRAM_SIZES})
    used: int = NGRAM_SIZES[0]

    def extend(self, ids: Sequence[int]) -> None:
        """Index the n-grams that end before the last token: the last has no follower yet."""
        for end in range(max(self.indexed, 1), len(ids)):
            for n in NGRAM_SIZES:
                if end >= n:
                    self.after[tuple(ids[end - n : end])] = end
        self.indexed = len(ids)


def _continuation(ids: Sequence[int], start: int, depth: int) -> list[int]:
    """Copy from `start`; past the end the copy goes on with its own beginning (a loop)."""
    guess: list[int] = []
    period = len(ids) - start
    for i in range(depth):
        guess.append(ids[start + i] if i < period else guess[i - period])
    return guess
