"""Drafts from the texts of a whole cohort: rows that are asked alike often answer alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mtplx_kernel.decoding.depth import COMMON_WEIGHT, Costs, Rate
from mtplx_kernel.decoding.drafting import Drafts, Slotless
from mtplx_kernel.decoding.lookup import (
    JUDGED,
    LONG_DECAY,
    LOOKUP,
    NGRAM_SIZES,
    LookupDrafter,
    Source,
    copied,
    judge,
    offer,
    settled,
)
from mtplx_kernel.decoding.row import Row

PRIORS = {4: 0.35, 3: 0.25, 2: 0.15}
"""How often what followed in another row's text is believed to follow here, before any was tried:
less often than what followed in the row's own."""
POOL = "pool"
PLACES = 8
"""So many last places of an n-gram have a say in what follows it."""
MOST_PLACES = 2**16
"""A pool that holds more forgets its older half."""

Place = tuple[list[int], int]
"""A text, and where in it an n-gram has ended."""


class PoolDrafter(Slotless):
    """Guesses that a row repeats itself, or another row of its pool.

    A pool holds the n-grams of the prompts and outputs of all rows that name it (`Row.pool`), and
    is gone with the last of them. Rows without a pool draft from their own text alone.

    Parameters
    ----------
    costs
        What the parts of a cycle cost.
    """

    name = LOOKUP

    def __init__(self, costs: Costs | None = None) -> None:
        self.own = LookupDrafter(costs)
        self._pools: dict[str, _Pool] = {}
        self._rates = {n: Rate(LONG_DECAY, COMMON_WEIGHT) for n in NGRAM_SIZES}

    @property
    def costs(self) -> Costs:
        """What the parts of a cycle cost."""
        return self.own.costs

    @costs.setter
    def costs(self, costs: Costs) -> None:
        self.own.costs = costs

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """A row that is prefilled keeps its pool alive, and adds its prompt to it."""
        self._join(rows)

    def catch_up(self, rows: Sequence[Row]) -> None:
        """The texts are read when they are guessed from."""

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Guess from each row's text and those of its pool."""
        return copied(self.costs, rows, self.sources(rows, depths))

    def sources(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[Source]]:
        """What may be copied for each row, its own text first, then from long n-grams to short."""
        self._join(rows)
        found = self.own.sources(rows, depths)
        for row, most, sources in zip(rows, depths, found, strict=True):
            if row.pool is None or not most or settled(row):
                continue
            pool = self._pools[row.pool]
            for n, (ids, end) in pool.matches(row.ids):
                rate = pool.rates[n].given(self._rates[n].given(PRIORS[n]))
                # Unlike a text that repeats itself, another one goes on no further than its end.
                shared = offer(row, min(most, len(ids) - end), rate)
                sources.append(Source(shared, ids, end, by=POOL))
        return found

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        """Hold what the row's own text and the pool would have guessed against what came."""
        self.own.observe(row, drafted, tokens)
        self._join([row])
        if row.pool is not None:
            pool = self._pools[row.pool]
            for n, (ids, end) in pool.matches(row.ids):
                guess = ids[end : end + min(len(tokens), JUDGED)]
                judge((pool.rates[n], self._rates[n]), guess, tokens)

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget the row; its text stays as long as its pool."""
        self.own.release(row)
        if row.pool in self._pools and self._pools[row.pool].leave(row):
            del self._pools[row.pool]

    def _join(self, rows: Sequence[Row]) -> None:
        """Add to the pools what is new in their rows' texts."""
        for row in rows:
            if row.pool is not None:
                self._pools.setdefault(row.pool, _Pool()).extend(row)


@dataclass(slots=True)
class _Pool:
    """Where the n-grams of some rows' texts were last followed by something.

    Attributes
    ----------
    new, old
        The last places of each n-gram. Once there are many in `new` it becomes `old`, and what was
        there is forgotten.
    added
        How many places were put into `new`.
    indexed
        By row: how many of its ids were read.
    rates
        What guesses of each size were worth.
    """

    new: dict[tuple[int, ...], list[Place]] = field(default_factory=dict)
    old: dict[tuple[int, ...], list[Place]] = field(default_factory=dict)
    added: int = 0
    indexed: dict[str, int] = field(default_factory=dict)
    rates: dict[int, Rate] = field(default_factory=lambda: {n: Rate() for n in NGRAM_SIZES})

    def extend(self, row: Row) -> None:
        """Index the n-grams that end before the row's last token."""
        ids = row.ids
        for end in range(max(self.indexed.get(row.request_id, 0), 1), len(ids)):
            for n in NGRAM_SIZES:
                if end >= n:
                    self._add(tuple(ids[end - n : end]), (ids, end))
        self.indexed[row.request_id] = len(ids)

    def matches(self, ids: list[int]) -> list[tuple[int, Place]]:
        """The sizes of which a text's last n-gram is in other texts, and where to copy from.

        That is the last place with the token that followed it there most often.
        """
        found = []
        for n in NGRAM_SIZES:
            key = tuple(ids[-n:])
            places = [*self.old.get(key, ()), *self.new.get(key, ())][-PLACES:]
            others = [place for place in places if place[0] is not ids]
            if len(ids) >= n and others:
                next_ids = Counter(text[end] for text, end in others)
                most = max(next_ids.values())
                found.append((n, next(p for p in others[::-1] if next_ids[p[0][p[1]]] == most)))
        return found

    def leave(self, row: Row) -> bool:
        """Count a row out; whether it was the last."""
        self.indexed.pop(row.request_id, None)
        return not self.indexed

    def _add(self, key: tuple[int, ...], place: Place) -> None:
        places = self.new.setdefault(key, [])
        places.append(place)
        del places[:-PLACES]
        self.added += 1
        if self.added >= MOST_PLACES // 2:
            self.old, self.new, self.added = self.new, {}, 0
