"""What a request's answer may go on with, token by token: the seam to a grammar library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

WORD_BITS = 32


class Constraint(Protocol):
    """Where one answer stands in what it must be. Its tokens are those of the row, in order."""

    @property
    def complete(self) -> bool:
        """Whether nothing can follow but the end."""
        ...

    @property
    def error(self) -> str | None:
        """Why it cannot go on, once that is so: its last masks say nothing then."""
        ...

    def allowed(self, drafts: Sequence[int]) -> mx.array:
        """Which ids may come next, and which after each of some drafts.

        Parameters
        ----------
        drafts
            Ids that may turn out wrong. Behind one that may not come, all ids are allowed: a draft
            that the target rules out is never accepted, so that nothing behind it counts.

        Returns
        -------
        mx.array
            bool, shape (drafts + 1, vocabulary); each row allows something.
        """
        ...

    def forced(self, most: int) -> list[int]:
        """At most so many ids that are likely next, as the text can go on in one way only."""
        ...

    def advance(self, token: int) -> str | None:
        """Take the row's next token; if it may not come, why."""
        ...


def unpacked(words: mx.array, vocabulary: int) -> mx.array:
    """Masks of one bit an id, the lowest first, as booleans.

    Parameters
    ----------
    words
        uint32, shape (n, words).

    Returns
    -------
    mx.array
        bool, shape (n, vocabulary).
    """
    places = mx.arange(WORD_BITS, dtype=mx.uint32)
    bits = mx.bitwise_and(mx.right_shift(words[..., None], places), mx.array(1, mx.uint32))
    return bits.reshape(words.shape[0], -1)[:, :vocabulary].astype(mx.bool_)
