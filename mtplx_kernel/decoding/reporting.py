"""Log-probabilities to report: launched with a cycle's forward, and read at its one sync."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx_kernel.decoding.logprob import TokenLogprob

ID_BITS = 32


@dataclass(frozen=True, slots=True)
class Report:
    """Log-probabilities at some positions of one row. Arrays, not yet evaluated.

    Attributes
    ----------
    ids
        int32, shape (n, 1 + top): the token of each position, and then the likeliest ids.
    logprobs
        float32, of the same shape: theirs.
    """

    ids: mx.array
    logprobs: mx.array

    @classmethod
    def of(cls, logits: mx.array, tokens: mx.array, top: int) -> Report:
        """Look up the tokens and the likeliest ids.

        Parameters
        ----------
        logits
            float32, shape (n, vocabulary), bias and penalties applied.
        tokens
            int32, shape (n,); where it is -1 nothing can be said, and any number is.
        top
            How many of the likeliest.
        """
        total = mx.logsumexp(logits, axis=-1, keepdims=True)
        ids = mx.maximum(tokens, 0)[:, None]
        if top:
            ids = mx.concatenate([ids, likeliest(logits - total, top)], axis=-1)
        return cls(ids, mx.take_along_axis(logits, ids, axis=-1) - total)

    def read(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """What to tell of the tokens at the first positions."""
        rows: list[list[int]] = self.ids.tolist()  # type: ignore[assignment]
        values: list[list[float]] = self.logprobs.tolist()  # type: ignore[assignment]
        return tuple(
            TokenLogprob(
                token,
                own[0],
                tuple(p for p in zip(ids[1:], own[1:], strict=True) if p[1] > -math.inf),
            )
            for token, ids, own in zip(tokens, rows, values, strict=False)
        )


def likeliest(logprobs: mx.array, top: int) -> mx.array:
    """The ids of the highest log-probabilities, in order; of equal ones the lower, as argmax.

    Parameters
    ----------
    logprobs
        float32, shape (n, vocabulary), normalised.
    top
        How many; of a smaller vocabulary, all.

    Returns
    -------
    mx.array
        int32, shape (n, top).
    """
    size = logprobs.shape[-1]
    # Numbers that are 0 or more have the order of their bits. Below those the id breaks ties.
    bits = mx.abs(logprobs).view(mx.int32).astype(mx.int64)
    keys = mx.left_shift(bits, ID_BITS) + mx.arange(size, dtype=mx.int64)
    first = min(top, size)
    best: mx.array = mx.sort(mx.partition(keys, first - 1, axis=-1)[:, :first], axis=-1)
    return mx.bitwise_and(best, 2**ID_BITS - 1).astype(mx.int32)
