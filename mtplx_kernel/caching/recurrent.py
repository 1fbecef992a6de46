"""Recurrent state (gated delta, mamba, convolutions) with rollback by reference.

Such a layer keeps its last state only. The state before a forward is a reference, so keeping it is
free; when a forward held a wrong draft, the row returns to that state and feeds its accepted tokens
again in front of the next drafts.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from mtplx_kernel.caching.span import Span


class RecurrentCache(ArraysCache):
    """mlx-lm's state cache over slots: `cache` is what a forward sees, the rest is committed.

    Parameters
    ----------
    size
        Arrays a layer keeps.
    slots
        How many rows are held.
    """

    cache: Any
    lengths: Any

    def __init__(self, size: int, slots: int) -> None:
        super().__init__(size)
        self.slots = slots
        self._committed: list[mx.array | None] = [None] * size
        self._span: Span | None = None

    @property
    def offset(self) -> int | mx.array:
        """Position of the first new token, for layers that ask."""
        assert self._span is not None
        return self._span.offset

    def begin(self, span: Span) -> None:
        """Show the rows' committed states to the next forward; a row that starts at 0 has none."""
        self._span = span
        fresh = [start == 0 for start in span.starts]
        self.lengths = span.lengths if span.ragged else None
        self.left_padding = None
        self.cache = [self._shown(array, fresh) for array in self._committed]

    def _shown(self, array: mx.array | None, fresh: list[bool]) -> mx.array | None:
        assert self._span is not None
        if array is None or all(fresh):
            return None
        # A new object for the same memory: a layer that writes in place must not reach the old one.
        shown = array[...] if self._span.rows == self.slots else array[self._span.slots]
        return _where_rows(fresh, mx.zeros_like(shown), shown) if any(fresh) else shown

    def commit(self, whole: list[bool]) -> None:
        """Keep the new state of the rows whose tokens were all right, the old state of the rest."""
        if any(whole):
            self._committed = [
                self._kept(old, new, whole)
                for old, new in zip(self._committed, self.cache, strict=True)
            ]

    def _kept(
        self, old: mx.array | None, new: mx.array | None, whole: list[bool]
    ) -> mx.array | None:
        assert self._span is not None
        if new is None:
            return old
        if self._span.rows == self.slots and all(whole):
            return new
        if old is None:
            old = mx.zeros((self.slots, *new.shape[1:]), new.dtype)
        kept = mx.array(old)
        before = old[self._span.slots]
        kept[self._span.slots] = new if all(whole) else _where_rows(whole, new, before)
        return kept

    def resize(self, slots: int, length: int) -> None:
        """Hold another number of slots."""
        kept = min(slots, self.slots)
        self.slots = slots
        if not length:
            self.drop()
        self._committed = [
            array if array is None or array.shape[0] == slots else _resized(array, slots, kept)
            for array in self._committed
        ]

    def take(self, slot: int, start: int, end: int) -> list[mx.array | None]:
        """Copies of a row's committed states, whatever positions are asked for."""
        return self.save(slot)

    def put(self, slot: int, start: int, parts: list[mx.array | None]) -> None:
        """Give a slot the states that were taken."""
        self.restore(slot, parts)

    def drop(self) -> None:
        """Forget all states."""
        self._committed = [None] * len(self._committed)
        self.cache = [None] * len(self._committed)

    def advance(self, N: int) -> None:
        """Nothing to do: lengths are set for each forward, and the span shares them."""

    def clear(self, slot: int, start: int = 0) -> None:
        """Nothing to do: a row that starts at 0 is shown no state."""

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate after a forward, before and after it."""
        return [a for a in (*self._committed, *self.cache) if a is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held by the committed states."""
        return sum(a.nbytes for a in self._committed if a is not None)

    def save(self, slot: int) -> list[mx.array | None]:
        """Copies of a row's committed states, shape (1, …) each."""
        return [None if a is None else mx.array(a[slot : slot + 1]) for a in self._committed]

    def restore(self, slot: int, saved: list[mx.array | None]) -> None:
        """Make saved states a row's committed ones."""
        self._committed = [
            self._restored(old, slot, new) for old, new in zip(self._committed, saved, strict=True)
        ]

    def _restored(self, old: mx.array | None, slot: int, new: mx.array | None) -> mx.array | None:
        if new is None:
            return old
        # A new object: the old one may be what a forward in flight was shown.
        kept = mx.zeros((self.slots, *new.shape[1:]), new.dtype) if old is None else mx.array(old)
        kept[slot : slot + 1] = new
        return kept

    def contents(self, slot: int, length: int) -> list[mx.array]:
        """A row's committed states, for comparisons."""
        return [a[slot] for a in self._committed if a is not None]

    def __bool__(self) -> bool:
        return True


def _resized(array: mx.array, slots: int, kept: int) -> mx.array:
    fresh = mx.zeros((slots, *array.shape[1:]), array.dtype)
    fresh[:kept] = array[:kept]
    return fresh


def _where_rows(choose: list[bool], yes: mx.array, no: mx.array) -> mx.array:
    mask = mx.array(choose).reshape(-1, *([1] * (yes.ndim - 1)))
    return mx.where(mask, yes, no)
