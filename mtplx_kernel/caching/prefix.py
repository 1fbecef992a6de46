"""Caches of token sequences that were seen before, for prompts that begin with the same tokens.

Attention keys and values can be cut at any length. Recurrent states cannot, and the state of a
chain of heads cannot either: a sequence can be taken up again at its marks only there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

LEAST = 8
"""Tokens that are worth a restore; fewer cost less to feed again."""
STRIDE = 2
"""Each mark lies at least this many times as far as the one before: their number stays small, and
of any shared beginning at least half is found."""

Buffers = list[list[mx.array]]
"""Keys and values of each layer, shape (1, heads, tokens, dim)."""
States = list[list[mx.array | None]]
"""The state of each recurrent layer, shape (1, …)."""


@dataclass(frozen=True, slots=True)
class HeadMark:
    """Where an MTP head stood.

    Attributes
    ----------
    fed
        How many pairs its caches hold; the pair at a position ends with the token after it.
    seen
        The target's states of the positions from there to the mark at least, shape (1, positions,
        states); None where there are none.
    last
        For heads of several stages, their states of the last pair that was fed.
    """

    fed: int
    seen: mx.array | None = None
    last: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place where a sequence can be taken up again.

    Attributes
    ----------
    position
        How many tokens the model's caches hold there.
    states
        Of the recurrent layers.
    head
        None for a row that did not draft.
    """

    position: int
    states: States
    head: HeadMark | None = None

    @property
    def needs(self) -> int:
        """How many ids must agree: one more where the head was fed the token after the mark."""
        return self.position + (self.head is not None and self.head.fed >= self.position)

    @property
    def arrays(self) -> list[mx.array]:
        """All that it holds."""
        head = [] if self.head is None else [self.head.seen, self.head.last]
        found = [*(array for layer in self.states for array in layer), *head]
        return [array for array in found if array is not None]


@dataclass(frozen=True, slots=True)
class Saved:
    """A row's caches, copied out of its slot and evaluated.

    Attributes
    ----------
    ids
        The tokens they belong to.
    buffers
        Of the model's attention layers.
    head_buffers
        Of the head's; None for a row that did not draft.
    marks
        Places to go on from, in order; the last is the end.
    by_length
        Whether everything can be cut at any length.
    """

    ids: tuple[int, ...]
    buffers: Buffers
    head_buffers: Buffers | None
    marks: tuple[Mark, ...]
    by_length: bool

    @property
    def arrays(self) -> list[mx.array]:
        """All that it holds."""
        layers = [*self.buffers, *(self.head_buffers or [])]
        of_marks = [array for mark in self.marks for array in mark.arrays]
        return [*(array for layer in layers for array in layer), *of_marks]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The part of a stored sequence that a new one begins with.

    Attributes
    ----------
    key
        Names the entry that it comes from.
    mark
        Where it ends; without a head's part if none was asked for.
    buffers, head_buffers
        May be longer than the prefix.
    """

    key: int
    mark: Mark
    buffers: Buffers
    head_buffers: Buffers | None

    @property
    def length(self) -> int:
        """How many tokens need not be fed again."""
        return self.mark.position


class PrefixStore(Protocol):
    """What the decode step asks of whoever stores prefixes: `PrefixCache`, or one like it."""

    def find(self, ids: Sequence[int], *, drafting: bool = False) -> Prefix | None:
        """The longest usable beginning of `ids`; `drafting` asks for the head's part too."""
        ...

    def wants(self, ids: Sequence[int], length: int, *, drafting: bool, nbytes: int) -> bool:
        """Whether to keep caches of the first `length` ids, of about so many bytes."""
        ...

    def keep(self, saved: Saved) -> int | None:
        """Store a sequence, and return the key of its entry; None if it was not stored."""
        ...

    def forget(self, key: int) -> None:
        """Drop an entry that is not to be trusted; one that is gone already is no matter."""
        ...

    def failed(self, reason: str) -> None:
        """Learn that a sequence could not be copied; its request goes on without."""
        ...


@dataclass(slots=True)
class _Entry:
    ids: npt.NDArray[np.int64]
    saved: Saved
    nbytes: int
    used: int

    def agrees(self, ids: npt.NDArray[np.int64]) -> int:
        """How many first ids are the same."""
        n = min(len(ids), len(self.ids))
        differ = self.ids[:n] != ids[:n]
        return int(differ.argmax()) if differ.any() else n

    def best(self, agreed: int, drafting: bool) -> Mark | None:
        """The furthest place to go on from, if so many ids agree."""
        cut = [_cut(mark, self.saved.by_length, agreed, drafting) for mark in self.saved.marks]
        return max((m for m in cut if m is not None), key=lambda m: m.position, default=None)


class PrefixCache:
    """Stored sequences, bounded by their bytes; the one that was used longest ago goes first.

    For one thread; `nbytes` and `snapshot` may be read by any.

    Parameters
    ----------
    limit_bytes
        Most bytes that all sequences together may take.

    Attributes
    ----------
    nbytes
        Bytes held.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._entries: dict[int, _Entry] = {}
        self._clock = count()
        self._hits = self._misses = self._tokens_saved = self._evictions = 0
        self._last_error: str | None = None

    def find(self, ids: Sequence[int], *, drafting: bool = False) -> Prefix | None:
        """The longest usable beginning of `ids`: without the last one, which has to be decoded.

        Parameters
        ----------
        drafting
            Whether the head's part is needed too; then entries without one are of no use.
        """
        asked = np.asarray(ids, dtype=np.int64)
        found = self._furthest(asked[:-1], drafting)
        if found is None or found[1].position < LEAST:
            self._misses += 1
            return None
        key, mark = found
        entry = self._entries[key]
        entry.used = next(self._clock)
        self._hits += 1
        self._tokens_saved += mark.position
        return Prefix(key, mark, entry.saved.buffers, entry.saved.head_buffers)

    def wants(
        self, ids: Sequence[int], length: int, *, drafting: bool = False, nbytes: int = 0
    ) -> bool:
        """Whether to keep caches of the first `length` ids, of about so many bytes.

        Not if they do not fit, or are here already: a token more is not worth a copy.
        """
        if length < LEAST or nbytes > self.limit_bytes:
            return False
        found = self._furthest(np.asarray(ids[: length + 1], dtype=np.int64), drafting)
        if found is None or found[1].position < length - 1:
            return True
        self._entries[found[0]].used = next(self._clock)
        return False

    def keep(self, saved: Saved) -> int | None:
        """Store a sequence in place of those that it continues, and evict what is too much.

        Returns
        -------
        int or None
            The entry's key; None if it alone is too large.
        """
        ids = np.asarray(saved.ids, dtype=np.int64)
        continued = [
            key
            for key, entry in self._entries.items()
            if entry.agrees(ids) == len(entry.ids) and _continues(saved, entry.saved)
        ]
        if not saved.by_length:
            older = [mark for key in continued for mark in self._entries[key].saved.marks]
            saved = replace(saved, marks=_merged(older, saved))
        if saved.nbytes > self.limit_bytes:
            return None
        for key in continued:
            self._drop(key)
        self._evict(self.limit_bytes - saved.nbytes)
        now = next(self._clock)
        self._entries[now] = _Entry(ids, saved, saved.nbytes, now)
        self.nbytes += saved.nbytes
        return now

    def forget(self, key: int) -> None:
        """Drop an entry that is not to be trusted; one that is gone already is no matter."""
        if key in self._entries:
            self._drop(key)

    def failed(self, reason: str) -> None:
        """Note why a sequence could not be copied."""
        self._last_error = reason

    def limit(self, limit_bytes: int) -> None:
        """Change how much may be held, and evict what is too much."""
        self.limit_bytes = limit_bytes
        self._evict(limit_bytes)

    def snapshot(self) -> dict[str, Any]:
        """Plain data for the status."""
        return {
            "entries": len(self._entries),
            "bytes": self.nbytes,
            "limit_bytes": self.limit_bytes,
            "hits": self._hits,
            "misses": self._misses,
            "tokens_saved": self._tokens_saved,
            "evictions": self._evictions,
            "last_error": self._last_error,
        }

    def _furthest(self, ids: npt.NDArray[np.int64], drafting: bool) -> tuple[int, Mark] | None:
        """The entry to go on from, and where; of equally good ones the last used."""
        best: tuple[int, Mark] | None = None
        for key, entry in sorted(self._entries.items(), key=lambda item: -item[1].used):
            mark = entry.best(entry.agrees(ids), drafting)
            if mark is not None and (best is None or mark.position > best[1].position):
                best = key, mark
        return best

    def _evict(self, most: int) -> None:
        """Drop the entries that were used longest ago until no more bytes than `most` are held."""
        while self.nbytes > most:
            self._drop(min(self._entries, key=lambda key: self._entries[key].used))
            self._evictions += 1

    def _drop(self, key: int) -> None:
        self.nbytes -= self._entries.pop(key).nbytes


def due(position: int, last: int) -> bool:
    """Whether a mark is wanted here, given where the last one is."""
    return position >= max(LEAST, STRIDE * last)


def _cut(mark: Mark, by_length: bool, agreed: int, drafting: bool) -> Mark | None:
    """The place to go on from at or before a mark, if so many ids agree."""
    if drafting and mark.head is None:
        return None
    if not drafting:
        mark = replace(mark, head=None)
    if mark.needs <= agreed:
        return mark
    if not by_length or agreed == 0:
        return None
    head = mark.head
    if head is None:
        return Mark(agreed, mark.states)
    if head.fed < agreed:
        return Mark(agreed, mark.states, head)
    # What the next pair needs is the state of the last token that agrees: that one is fed again.
    return Mark(agreed - 1, mark.states, HeadMark(agreed - 1))


def _continues(new: Saved, old: Saved) -> bool:
    """Whether the new one can do all that the old one could, given that its ids continue it."""
    return (new.head_buffers is not None or old.head_buffers is None) and (
        new.marks[-1].position >= old.marks[-1].position
    )


def _merged(older: Iterable[Mark], new: Saved) -> tuple[Mark, ...]:
    """The marks of a sequence and those of what it continues, thinned out except for its own."""
    fed = max((mark.head.fed for mark in new.marks if mark.head is not None), default=0)
    own = {mark.position for mark in new.marks}
    usable = [m for m in older if m.head is None or (m.head.fed <= fed)]
    marks = sorted(
        [*(m for m in usable if m.position not in own), *new.marks], key=lambda m: m.position
    )
    kept: list[Mark] = []
    for mark in marks:
        if mark.position in own or not kept or due(mark.position, kept[-1].position):
            kept.append(mark)
    return tuple(kept)
