"""Between a row and the store of prefixes: takes a row up where a stored one was, and stores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import mlx.core as mx

from mtplx_kernel.caching.prefix import HeadMark, Mark, PrefixStore, Saved, due
from mtplx_kernel.caching.slots import Caches, SlotCaches
from mtplx_kernel.decoding.drafting import Drafter
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.row import Row

Result = TypeVar("Result")


class RowPrefixes:
    """What the decode step knows of its rows' prefixes. mlx-lm's own caches are not kept.

    Parameters
    ----------
    caches
        The model's.
    drafter
        A head in it has caches of its own, which belong to a prefix.
    """

    def __init__(self, caches: Caches, drafter: Drafter | None) -> None:
        self._caches = caches
        self._head = _head_of(drafter)
        self._marks: dict[str, list[Mark]] = {}
        self._keys: dict[str, list[tuple[PrefixStore, int]]] = {}

    def restore(self, row: Row, store: PrefixStore) -> int:
        """Begin a row that was just admitted with what is stored of its ids.

        Returns
        -------
        int
            How many tokens need not be fed.
        """
        caches, head = self._caches, self._drafting(row)
        if not isinstance(caches, SlotCaches):
            return 0
        found = _guarded(store, lambda: store.find(row.ids, drafting=head is not None))
        if found is None:
            return 0
        mark = found.mark

        def put_back() -> int:
            caches.restore(row.place, mark.position, found.buffers, mark.states)
            if head is not None and mark.head is not None and found.head_buffers is not None:
                head.restore(row, mark.position, mark.head, found.head_buffers)
            return mark.position

        row.committed = _guarded(store, put_back) or 0
        if row.committed:
            self._marks[row.request_id] = [mark]
            self._keys[row.request_id] = [(store, found.key)]
        elif head is not None:
            head.release(row)
        return row.committed

    def save(self, row: Row, store: PrefixStore) -> None:
        """Store what a row's caches hold; while it prefills, only what will be gone by its end.

        What is stored already, and what is not finite, is not kept.
        """
        caches = self._caches
        if isinstance(caches, SlotCaches):
            _guarded(store, lambda: self._save(caches, row, store))

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget a row; with `wipe` also what was stored of it, which may not be finite."""
        self._marks.pop(row.request_id, None)
        for store, key in self._keys.pop(row.request_id, []):
            if wipe:
                store.forget(key)

    def _save(self, caches: SlotCaches, row: Row, store: PrefixStore) -> None:
        head = self._drafting(row)
        # Past a stop inside a block the caches hold tokens that are not the row's.
        position = min(row.committed, len(row.ids))
        known = self._marks.get(row.request_id, [])
        marks = [mark for mark in known if mark.position < position]
        if row.prefill_left:
            last = marks[-1].position if marks else 0
            divisible = not caches.recurrent and (head is None or head.head.stages == 1)
            if divisible or not due(position, last):
                return
        else:
            footprint = caches.footprint
            nbytes = footprint.fixed + footprint.position * position
            drafting = head is not None
            if not store.wants(row.ids, position, drafting=drafting, nbytes=nbytes):
                return
        mark = _mark(caches, head, row, position)
        if mark is None:
            return
        mx.eval(mark.arrays)
        marks.append(mark)
        self._marks[row.request_id] = marks
        if row.prefill_left:
            return
        saved = _saved(caches, head, row, marks)
        mx.eval(saved.arrays)
        if _finite(saved):
            key = store.keep(saved)
            if key is not None:
                self._keys.setdefault(row.request_id, []).append((store, key))

    def _drafting(self, row: Row) -> HeadDrafter | None:
        """The head that drafts for a row, and has to be taken up with it."""
        return self._head if row.drafting else None


def _head_of(drafter: Drafter | None) -> HeadDrafter | None:
    if isinstance(drafter, HeadDrafter):
        return drafter
    inner = getattr(drafter, "head", None)
    return inner if isinstance(inner, HeadDrafter) else None


def _mark(caches: SlotCaches, head: HeadDrafter | None, row: Row, position: int) -> Mark | None:
    """Where the row is; None where it could not go on from there."""
    if caches.recurrent and position != row.committed:
        return None
    part: HeadMark | None = None
    if head is not None:
        part = head.save(row, position)
        if part is None:
            return None
    return Mark(position, caches.save_states(row.place), part)


def _saved(caches: SlotCaches, head: HeadDrafter | None, row: Row, marks: Sequence[Mark]) -> Saved:
    mark = marks[-1]
    buffers = None
    if head is not None and mark.head is not None:
        buffers = head.save_buffers(row, mark.head.fed)
    by_length = not caches.recurrent and (mark.head is None or mark.head.last is None)
    return Saved(
        ids=tuple(row.ids[: mark.needs]),
        buffers=caches.save(row.place, mark.position),
        head_buffers=buffers,
        marks=(mark,) if by_length else tuple(marks),
        by_length=by_length,
    )


def _finite(saved: Saved) -> bool:
    """Whether the last token's part is: what was not before it shows there."""
    layers = [*saved.buffers, *(saved.head_buffers or [])]
    parts = [array[:, :, -1:] for layer in layers for array in layer]
    parts += [array for mark in saved.marks for array in mark.arrays]
    flat = [part.reshape(-1).astype(mx.float32) for part in parts if part.size]
    return bool(mx.all(mx.isfinite(mx.concatenate(flat))).item())


def _guarded(store: PrefixStore, call: Callable[[], Result]) -> Result | None:
    """Call what may only cost speed: a failure is reported to the store and gives None."""
    try:
        return call()
    except Exception as error:  # whatever MLX or the store raises, such as no memory for a copy
        reason = " ".join(f"{type(error).__name__}: {error}".split())
    with suppress(Exception):  # a store that cannot even take note has nobody else to tell
        store.failed(reason)
    return None
