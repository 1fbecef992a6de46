"""Attention keys and values of several rows in one buffer, left-aligned, with rollback by length.

The buffer has no length of its own: each forward is told where its rows start (`Span`), so taking
tokens back is starting the next forward earlier, and nothing is copied or rolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mtplx_kernel.caching.footprint import positions
from mtplx_kernel.caching.span import Span


class RaggedKVCache:
    """What an mlx-lm attention layer needs of a cache, for the rows of the current span.

    Parameters
    ----------
    slots
        How many rows the buffer holds.
    window
        How many keys a token of this layer sees, its own included; None for all.

    Notes
    -----
    A sliding-window layer keeps all keys and hides the old ones: a rotating buffer cannot take
    tokens back once it has wrapped.
    """

    def __init__(self, slots: int, window: int | None = None) -> None:
        self.slots = slots
        self.window = window
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._span: Span | None = None

    def begin(self, span: Span) -> None:
        """Set the rows of the next forward."""
        self._span = span

    def commit(self, whole: list[bool]) -> None:
        """Nothing to do: positions past a row's length are overwritten by its next forward."""

    @property
    def span(self) -> Span:
        """The rows of the current forward."""
        if self._span is None:
            raise RuntimeError("the cache was used outside a forward")
        return self._span

    @property
    def offset(self) -> int | mx.array:
        """Position of the first new token: a number for one row, else shape (rows,)."""
        return self.span.offset

    @property
    def _first_key(self) -> int:
        """The first position that one row's new tokens still see; batches show all keys."""
        if self.window is None or self.span.rows > 1:
            return 0
        return max(0, self.span.starts[0] + 1 - self.window)

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """The attention mask of the current forward, in mlx-lm's terms."""
        span = self.span
        window = self.window if window_size is None else window_size
        hidden = window is not None and span.end - self._first_key > window
        if span.rows == 1 and not hidden and n == 1:
            return None
        if span.rows == 1 and not hidden and not return_array:
            return "causal"
        return span.visible(window, self._first_key)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store the new tokens' keys and values and return all that their rows hold.

        Parameters
        ----------
        keys, values
            Shape (rows, heads, width, dim).

        Returns
        -------
        tuple of mx.array
            Shape (rows, heads, keys, dim), ragged on the right where rows differ in length.
        """
        self.keys = self._store(self.keys, keys)
        self.values = self._store(self.values, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The current rows' keys and values, shape (rows, heads, keys, dim) each."""
        assert self.keys is not None and self.values is not None
        span, first = self.span, self._first_key
        return (
            self.keys[span.slots, :, first : span.end],
            self.values[span.slots, :, first : span.end],
        )

    def _store(self, buffer: mx.array | None, new: mx.array) -> mx.array:
        """Write the new tokens in place: MLX gives the buffer's memory on, and copies nothing."""
        span = self.span
        buffer = self._grown(buffer, new, span.end)
        if span.rows == 1:
            start = span.starts[0]
            buffer[span.slots, :, start : start + new.shape[2]] = new
            return buffer
        _, heads, held, dim = buffer.shape
        flat = buffer.reshape(-1, dim)
        flat = mx.put_along_axis(flat, span.places(heads, held, dim), new.reshape(-1, dim), axis=0)
        return flat.reshape(self.slots, heads, held, dim)

    def _grown(self, buffer: mx.array | None, new: mx.array, end: int) -> mx.array:
        _, heads, _, dim = new.shape
        held = 0 if buffer is None else buffer.shape[2]
        if end <= held:
            assert buffer is not None
            return buffer
        room = positions(end, held) - held
        fresh = mx.zeros((self.slots, heads, room, dim), new.dtype)
        return fresh if buffer is None else mx.concatenate([buffer, fresh], axis=2)

    @property
    def room(self) -> int:
        """How many positions the buffer has."""
        return 0 if self.keys is None else self.keys.shape[2]

    def resize(self, slots: int, length: int) -> None:
        """Hold another number of slots, and no more positions than rows of `length` need."""
        room = min(self.room, positions(length, 0))
        kept = min(slots, self.slots)
        self.slots = slots
        if not room:
            self.drop()
            return
        assert self.keys is not None and self.values is not None
        self.keys, self.values = (
            _resized(buffer, slots, kept, room) for buffer in (self.keys, self.values)
        )

    def take(self, slot: int, start: int, end: int) -> list[mx.array]:
        """Copies of a row's keys and values from position `start` to `end`."""
        # A gather: a plain slice would share the buffer's memory, and keep it from being reused.
        index = mx.array([slot])
        return [mx.take(buffer[:, :, start:end], index, axis=0) for buffer in self.arrays]

    def put(self, slot: int, start: int, parts: Sequence[mx.array]) -> None:
        """Write what was taken to a slot, from position `start` on."""
        for buffer, part in zip(self.arrays, parts, strict=True):
            if part.shape[2]:
                buffer[slot : slot + 1, :, start : start + part.shape[2]] = part

    def drop(self) -> None:
        """Forget all rows."""
        self.keys = self.values = None

    def clear(self, slot: int, start: int = 0) -> None:
        """Zero a slot: masked keys count as 0 times their value, and 0 times NaN is NaN.

        An only slot is dropped instead: after a forward that failed halfway its buffers may still
        depend on that forward, and would fail again.
        """
        if self.slots == 1 and start == 0:
            self.drop()
        elif self.keys is not None and self.values is not None:
            self.keys[slot, :, start:] = 0.0
            self.values[slot, :, start:] = 0.0

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate after a forward."""
        return [a for a in (self.keys, self.values) if a is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(a.nbytes for a in self.arrays)

    @property
    def position_bytes(self) -> int:
        """Bytes that each position of one row takes; 0 before the first forward."""
        return sum(a.nbytes // (a.shape[0] * a.shape[2]) for a in self.arrays)

    def restore(self, slot: int, length: int, saved: list[mx.array]) -> None:
        """Write the first `length` positions of what was once taken, whatever is here now."""
        if saved and length:
            self.keys, self.values = (
                self._restored(buffer, slot, array[:, :, :length])
                for buffer, array in zip((self.keys, self.values), saved, strict=True)
            )

    def _restored(self, buffer: mx.array | None, slot: int, new: mx.array) -> mx.array:
        buffer = self._grown(buffer, new, new.shape[2])
        buffer[slot : slot + 1, :, : new.shape[2]] = new
        return buffer

    def contents(self, slot: int, length: int) -> list[mx.array]:
        """A row's first `length` keys and values, for comparisons."""
        return [a[slot, :, :length] for a in self.arrays]

    def __bool__(self) -> bool:
        return True

    @property
    def state(self) -> Any:
        """The buffers, as mlx-lm's own caches show them."""
        return self.keys, self.values


def _resized(buffer: mx.array, slots: int, kept: int, room: int) -> mx.array:
    _, heads, held, dim = buffer.shape
    if (slots, room) == (buffer.shape[0], held):
        return buffer
    fresh = mx.zeros((slots, heads, room, dim), buffer.dtype)
    fresh[:kept] = buffer[:kept, :, :room]
    return fresh
