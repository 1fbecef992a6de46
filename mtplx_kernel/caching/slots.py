"""A model's caches for a number of slots: built from what mlx-lm makes, or kept as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from mtplx_kernel.caching.footprint import Footprint
from mtplx_kernel.caching.prefix import Buffers, States
from mtplx_kernel.caching.ragged import RaggedKVCache
from mtplx_kernel.caching.recurrent import RecurrentCache
from mtplx_kernel.caching.span import Span


@dataclass(frozen=True, slots=True)
class Move:
    """A row of `length` tokens goes from one slot to another."""

    source: int
    slot: int
    length: int


class UnsupportedCache(Exception):
    """A layer keeps a kind of cache that cannot take tokens back."""


class SlotCaches:
    """Ragged caches of all layers, over a number of slots.

    Parameters
    ----------
    model
        An mlx-lm model.
    slots
        How many rows are held.

    Raises
    ------
    UnsupportedCache
        If a layer's cache has no ragged counterpart.
    """

    rollback = True

    def __init__(self, model: Any, slots: int = 1) -> None:
        self.slots = slots
        self.layers = [_counterpart(cache, slots) for cache in make_prompt_cache(model)]
        self._leaves = list(_leaves(self.layers))
        self.recurrent = any(isinstance(leaf, RecurrentCache) for leaf in self._leaves)

    def begin(self, span: Span) -> list[Any]:
        """Set the rows of the next forward and return what the model takes as its cache."""
        for leaf in self._leaves:
            leaf.begin(span)
        return self.layers

    def commit(self, whole: list[bool]) -> None:
        """End a forward; `whole` says for each row whether every token it fed was right."""
        for leaf in self._leaves:
            leaf.commit(whole)

    def clear(self, slot: int, start: int = 0) -> None:
        """Wipe a slot from a position on, where values that are not finite may be."""
        for leaf in self._leaves:
            leaf.clear(slot, start)

    @property
    def room(self) -> int:
        """How many positions the buffers have; growing them copies all that they hold."""
        buffers = [leaf for leaf in self._leaves if isinstance(leaf, RaggedKVCache)]
        return min((leaf.room for leaf in buffers), default=0)

    def resize(self, slots: int, length: int) -> None:
        """Hold another number of slots, with buffers no longer than rows of `length` tokens need.

        Rows in slots that are no more are lost, and with a length of 0 all of them.
        """
        self.slots = slots
        for leaf in self._leaves:
            leaf.resize(slots, length)

    def move(self, moves: Sequence[Move]) -> None:
        """Move rows, all at once: what a slot held before is lost unless it moves too."""
        taken = [[leaf.take(m.source, 0, m.length) for leaf in self._leaves] for m in moves]
        # Evaluated first, nothing refers to the buffers any more, and they are written in place.
        mx.eval(taken)
        for m, parts in zip(moves, taken, strict=True):
            for leaf, part in zip(self._leaves, parts, strict=True):
                leaf.put(m.slot, 0, part)

    def copy(self, source: int, slots: Sequence[int], start: int, end: int) -> None:
        """Copy a row's positions `start` to `end`, and its committed states, to other slots."""
        parts = [leaf.take(source, start, end) for leaf in self._leaves]
        mx.eval(parts)
        for slot in slots:
            for leaf, part in zip(self._leaves, parts, strict=True):
                leaf.put(slot, start, part)

    def drop(self) -> None:
        """Forget all rows and give their memory back."""
        for leaf in self._leaves:
            leaf.drop()

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, to evaluate after a forward."""
        return [array for leaf in self._leaves for array in leaf.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(leaf.nbytes for leaf in self._leaves)

    @property
    def footprint(self) -> Footprint:
        """What a row takes, read after a forward."""
        states = [leaf for leaf in self._leaves if isinstance(leaf, RecurrentCache)]
        buffers = [leaf for leaf in self._leaves if isinstance(leaf, RaggedKVCache)]
        return Footprint(
            fixed=sum(leaf.nbytes for leaf in states) // self.slots,
            position=sum(leaf.position_bytes for leaf in buffers),
        )

    def save(self, slot: int, length: int) -> Buffers:
        """Copies of what a row's first `length` tokens have in the attention layers."""
        return [leaf.take(slot, 0, length) for leaf in self._leaves if _cuts(leaf)]

    def save_states(self, slot: int) -> States:
        """Copies of a row's recurrent states."""
        return [leaf.save(slot) for leaf in self._leaves if not _cuts(leaf)]

    def restore(self, slot: int, length: int, buffers: Buffers, states: States) -> None:
        """Make a row what was saved of one, up to `length` tokens."""
        cut = [leaf for leaf in self._leaves if _cuts(leaf)]
        for leaf, arrays in zip(cut, buffers, strict=True):
            leaf.restore(slot, length, arrays)
        whole = [leaf for leaf in self._leaves if not _cuts(leaf)]
        for leaf, state in zip(whole, states, strict=True):
            leaf.restore(slot, state)

    def contents(self, slot: int, length: int) -> list[mx.array]:
        """Everything a row of `length` tokens has in the caches, for comparisons."""
        return [array for leaf in self._leaves for array in leaf.contents(slot, length)]


class StockCaches:
    """mlx-lm's own caches, for one row that never takes a token back: enough for mode ar."""

    rollback = False
    recurrent = False
    slots = 1
    room = 0

    def __init__(self, model: Any) -> None:
        self._model = model
        self.layers: list[Any] = []

    def begin(self, span: Span) -> list[Any]:
        """Start anew where the row starts, else go on."""
        if span.starts[0] == 0:
            self.layers = make_prompt_cache(self._model)
        return self.layers

    def commit(self, whole: list[bool]) -> None:
        """Refuse to go back."""
        if not all(whole):
            raise UnsupportedCache("these caches cannot take a token back")

    def clear(self, slot: int, start: int = 0) -> None:
        """Forget the row."""
        self.layers = []

    def drop(self) -> None:
        """Forget the row."""
        self.layers = []

    def resize(self, slots: int, length: int) -> None:
        """Refuse a second row."""
        if slots > 1:
            raise UnsupportedCache("these caches hold one row")

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, to evaluate after a forward."""
        states: Any = tree_flatten([layer.state for layer in self.layers])
        return [array for _, array in states if isinstance(array, mx.array)]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def footprint(self) -> Footprint:
        """What the row takes, read after a forward; only plain caches grow with the text."""
        leaves = [leaf for leaf in _leaves(self.layers) if not leaf.empty()]
        plain = [leaf for leaf in leaves if type(leaf) is KVCache]
        buffers: Any = [array for leaf in plain for array in (leaf.keys, leaf.values)]
        rest: Any = tree_flatten([leaf.state for leaf in leaves if leaf not in plain])
        fixed = sum(array.nbytes for _, array in rest if isinstance(array, mx.array))
        return Footprint(fixed, sum(array.nbytes // array.shape[2] for array in buffers))


Caches = SlotCaches | StockCaches


def _counterpart(cache: Any, slots: int) -> Any:
    kind = type(cache)
    if kind is KVCache:
        return RaggedKVCache(slots)
    if kind is RotatingKVCache and cache.keep == 0:
        return RaggedKVCache(slots, window=cache.max_size)
    if kind is ArraysCache:
        return RecurrentCache(len(cache.cache), slots)
    if kind is CacheList:
        return CacheList(*(_counterpart(inner, slots) for inner in cache.caches))
    raise UnsupportedCache(f"a layer uses {kind.__name__}, which cannot take tokens back")


def _leaves(caches: list[Any]) -> Iterator[Any]:
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from _leaves(list(cache.caches))
        else:
            yield cache


def _cuts(leaf: Any) -> bool:
    return isinstance(leaf, RaggedKVCache)
