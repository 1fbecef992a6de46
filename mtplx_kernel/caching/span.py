"""Which slots a forward covers and where each row's tokens go: shared by all its layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx


class Span:
    """One forward over neighbouring slots, right-padded to the widest row.

    Parameters
    ----------
    first
        The first slot.
    starts
        For each row, how many tokens its caches hold: the position of its first new token.
    counts
        For each row, how many new tokens it brings; the forward is `max(counts)` wide.
    """

    def __init__(self, first: int, starts: Sequence[int], counts: Sequence[int]) -> None:
        self.first = first
        self.starts = list(starts)
        self.counts = list(counts)
        self.width = max(counts)
        self.rows = len(self.starts)
        self.end = max(self.starts) + self.width
        self._masks: dict[tuple[int | None, int], mx.array] = {}
        self._places: dict[tuple[int, int, int], mx.array] = {}

    @property
    def slots(self) -> slice:
        """The covered slots."""
        return slice(self.first, self.first + self.rows)

    @property
    def ragged(self) -> bool:
        """Whether some row is padded."""
        return min(self.counts) != self.width

    @cached_property
    def offset(self) -> int | mx.array:
        """Rotary offset: a number for one row, else int32 of shape (rows,)."""
        return self.starts[0] if self.rows == 1 else mx.array(self.starts)

    @cached_property
    def lengths(self) -> mx.array:
        """Real new tokens of each row, shape (rows,)."""
        return mx.array(self.counts)

    @cached_property
    def positions(self) -> mx.array:
        """Absolute positions of the new tokens, shape (rows, width)."""
        return mx.array(self.starts)[:, None] + mx.arange(self.width)

    def places(self, heads: int, held: int, dim: int) -> mx.array:
        """Where new tokens go in a buffer (slots, heads, held, dim), flat but for the last axis.

        Returns
        -------
        mx.array
            Shape (rows * heads * width, dim), the same number along the last axis.
        """
        known = self._places.get((heads, held, dim))
        if known is None:
            lines = mx.arange(self.first * heads, (self.first + self.rows) * heads) * held
            lines = lines.reshape(self.rows, heads, 1) + self.positions[:, None]
            known = mx.broadcast_to(lines.reshape(-1, 1), (lines.size, dim))
            self._places[heads, held, dim] = known
        return known

    def visible(self, window: int | None, first_key: int = 0) -> mx.array:
        """Boolean mask, true where a new token may attend a cached key.

        Parameters
        ----------
        window
            How many keys, its own included, a token sees; None sees all before it.
        first_key
            Position of the first key that is shown to attention.

        Returns
        -------
        mx.array
            Shape (rows, 1, width, keys), or (width, keys) for one row.
        """
        known = self._masks.get((window, first_key))
        if known is not None:
            return known
        keys = mx.arange(first_key, self.end)
        queries = self.positions[..., None]
        mask = keys <= queries
        if window is not None:
            mask = mask & (keys > queries - window)
        mask = mask[0] if self.rows == 1 else mask[:, None]
        self._masks[window, first_key] = mask
        return mask
