"""How much memory a row's caches come to take, from what they take after one forward."""

from __future__ import annotations

from dataclasses import dataclass

GROWTH = 256
"""Buffers grow by at least this many positions, and by a quarter of what they hold."""


def positions(end: int, held: int) -> int:
    """How many positions a buffer of `held` has after it has grown to take `end`."""
    return _blocks(max(end, held + held // 4))


def most_positions(tokens: int) -> int:
    """How many positions a buffer comes to have at most, grown step by step to so many tokens."""
    return _blocks(tokens + tokens // 4)


def _blocks(count: int) -> int:
    return -(-count // GROWTH) * GROWTH


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one row.

    Attributes
    ----------
    fixed
        What does not grow with the text: recurrent states.
    position
        What each position of a buffer takes, all layers together.
    """

    fixed: int = 0
    position: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.fixed + other.fixed, self.position + other.position)

    def nbytes(self, tokens: int) -> int:
        """The most bytes that the caches come to hold for a row of so many tokens."""
        return self.fixed + self.position * most_positions(tokens)

    def tokens(self, nbytes: int) -> int | None:
        """The longest row whose caches fit in so many bytes; None where length does not matter."""
        if nbytes < self.fixed:
            return 0
        if self.position == 0:
            return None
        room = (nbytes - self.fixed) // self.position // GROWTH * GROWTH
        # The largest n with n + n // 4 <= room.
        return room // 5 * 4 + min(room % 5, 3)
