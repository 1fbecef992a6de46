"""Drafts from the request's own text: what followed the same words before may follow again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mtplx_kernel.decoding.depth import FLAT, Choice, CostCurve, Rate, best_depth
from mtplx_kernel.decoding.drafting import Drafts
from mtplx_kernel.decoding.row import Row

NGRAM_SIZES = (4, 3, 2)
FIRST_PRIOR = 0.5
"""How often a guess is believed to be right before any was tried."""
LONG_DECAY = 0.99
JUDGED = 8
"""Most tokens of a guess that are held against the text, drafted or not."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may follow, and the tokens a decode that they promise."""

    ids: list[int]
    value: float


class LookupDrafter:
    """Guesses that the text repeats itself.

    Works for every model and costs no forward. Of the n-grams that the text ends with, the one
    whose continuation promises the most tokens a second is copied; a row whose request fixed its
    depth is given that many. Every guess is held against what came, drafted or not, so a size of
    n-gram that was bad and gets better is found without trying it.

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

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """The text alone is read, not the target's states."""

    def catch_up(self, rows: Sequence[Row]) -> None:
        """The text is read when it is guessed from."""

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Guess from each row's own prompt and output."""
        return Drafts.of([guess.ids for guess in self.guess(rows, depths)])

    def guess(self, rows: Sequence[Row], depths: Sequence[int]) -> list[Guess]:
        """The guesses, with what they promise; none where that is less than without."""
        return [self._guess(row, depth) for row, depth in zip(rows, depths, strict=True)]

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        """Hold what each n-gram size would have guessed against what came."""
        text = self._text(row)
        text.extend(row.ids)
        for n, start in text.matches(row.ids):
            guessed = _continuation(row.ids, start, min(len(tokens), JUDGED))
            right = _agreement(guessed, tokens)
            text.rates[n].observe(len(guessed), right)
            self._rates[n].observe(len(guessed), right)

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Drop the row's n-grams."""
        self._texts.pop(row.request_id, None)

    def _guess(self, row: Row, most: int) -> Guess:
        text = self._text(row)
        text.extend(row.ids)
        best, source = Choice(0, 0.0), 0
        for n, start in text.matches(row.ids):
            choice = self._choose(row, text, n, most)
            if choice.value > best.value:
                best, source = choice, start
        return Guess(_continuation(row.ids, source, best.depth), best.value)

    def _choose(self, row: Row, text: _Text, n: int, most: int) -> Choice:
        rate = text.rates[n].given(self._rates[n].given(FIRST_PRIOR))
        least = 0 if row.params.depth is None else most
        pending = len(row.ids) - row.committed
        return best_depth(self._curve, [rate], most, pending=pending, least=least)

    def _text(self, row: Row) -> _Text:
        return self._texts.setdefault(row.request_id, _Text())


@dataclass(slots=True)
class _Text:
    """Where each n-gram of one request was last followed by something, and what that was worth."""

    indexed: int = 0
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    rates: dict[int, Rate] = field(default_factory=lambda: {n: Rate() for n in NGRAM_SIZES})

    def extend(self, ids: Sequence[int]) -> None:
        """Index the n-grams that end before the last token: the last has no follower yet."""
        for end in range(max(self.indexed, 1), len(ids)):
            for n in NGRAM_SIZES:
                if end >= n:
                    self.after[tuple(ids[end - n : end])] = end
        self.indexed = len(ids)

    def matches(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """The sizes of which the text's last n-gram came before, and where it went on."""
        found = []
        for n in NGRAM_SIZES:
            start = self.after.get(tuple(ids[-n:])) if len(ids) >= n else None
            if start is not None:
                found.append((n, start))
        return found


def _agreement(guessed: Sequence[int], tokens: Sequence[int]) -> int:
    for i, (a, b) in enumerate(zip(guessed, tokens, strict=False)):
        if a != b:
            return i
    return min(len(guessed), len(tokens))


def _continuation(ids: Sequence[int], start: int, depth: int) -> list[int]:
    """Copy from `start`; past the end the copy goes on with its own beginning (a loop)."""
    guess: list[int] = []
    period = len(ids) - start
    for i in range(depth):
        guess.append(ids[start + i] if i < period else guess[i - period])
    return guess
