"""Drafters guess the next tokens. They can change the speed only, never the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mtplx_kernel.decoding.row import Row

NGRAM_SIZES = (4, 3, 2)
PRIOR_HITS, PRIOR_TRIES = 1.0, 2.0
DECAY = 0.9
WORTH_A_DRAFT = 0.3
PROBE_EVERY = 16


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

    Works for every model and costs no forward. A row's n-grams of one size are believed as far as
    they were right lately (a decayed rate); sizes that keep failing are only probed now and then.
    """

    name = "lookup"

    def __init__(self) -> None:
        self._indexes: dict[str, _Ngrams] = {}

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[int]]:
        """Guess from each row's own prompt and output."""
        return [self._index(row).propose(row.ids, k) for row, k in zip(rows, depths, strict=True)]

    def observe(self, row: Row, drafted: int, accepted: int) -> None:
        """Update the rate of the n-gram size that the last guess came from."""
        if drafted:
            self._index(row).observe(accepted > 0)

    def release(self, row: Row) -> None:
        """Drop the row's n-grams."""
        self._indexes.pop(row.request_id, None)

    def _index(self, row: Row) -> _Ngrams:
        return self._indexes.setdefault(row.request_id, _Ngrams())


@dataclass(slots=True)
class _Rate:
    """A decayed share of guesses whose first token was right."""

    hits: float = PRIOR_HITS
    tries: float = PRIOR_TRIES
    skipped: int = 0

    def believed(self) -> bool:
        """Whether to guess; a size that is not believed is probed every so often."""
        if self.hits >= WORTH_A_DRAFT * self.tries:
            return True
        self.skipped += 1
        return self.skipped % PROBE_EVERY == 0

    def observe(self, hit: bool) -> None:
        self.hits = DECAY * self.hits + hit
        self.tries = DECAY * self.tries + 1.0


@dataclass(slots=True)
class _Ngrams:
    """Where each n-gram of one request was last followed by something."""

    indexed: int = 0
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    rates: dict[int, _Rate] = field(default_factory=lambda: {n: _Rate() for n in NGRAM_SIZES})
    used: int = NGRAM_SIZES[0]

    def propose(self, ids: Sequence[int], depth: int) -> list[int]:
        self._extend(ids)
        if depth == 0:
            return []
        for n in NGRAM_SIZES:
            start = self.after.get(tuple(ids[-n:])) if len(ids) >= n else None
            if start is not None and self.rates[n].believed():
                self.used = n
                return _continuation(ids, start, depth)
        return []

    def observe(self, hit: bool) -> None:
        self.rates[self.used].observe(hit)

    def _extend(self, ids: Sequence[int]) -> None:
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
