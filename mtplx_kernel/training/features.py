"""What the base model says about the training text: computed once a batch, and kept if it fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtplx_kernel.training.base import Base

GROUP = 64
LOGITS_AT_ONCE = 2**28
"""Most logits that are held at once to find a token's normaliser."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of text with the base's states.

    Attributes
    ----------
    tokens
        int32, shape (rows, length).
    sampled
        uint8, shape (rows, length): 1 for an answer's own tokens.
    lower
        The states below the final one, shape (rows, length, states).
    final
        The states after the final norm, shape (rows, length, hidden).
    normaliser
        Logarithm of the sum of exponentials of the base's logits, float32, shape (rows, length).
    """

    tokens: mx.array
    sampled: mx.array
    lower: mx.array
    final: mx.array
    normaliser: mx.array


@dataclass(frozen=True, slots=True)
class _Kept:
    lower: tuple[mx.array, mx.array]
    final: mx.array
    normaliser: mx.array

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.lower, self.final, self.normaliser))


class Features:
    """Batches of training text in a fixed division.

    Parameters
    ----------
    base
        The model, tapped for the head.
    tokens, sampled
        NumPy arrays of shape (rows, length).
    rows
        Rows of a batch.
    budget
        Bytes that kept states may take; batches beyond it are computed each time.
    """

    def __init__(self, base: Base, tokens: Any, sampled: Any, rows: int, budget: int) -> None:
        self._base = base
        self._tokens, self._sampled = tokens, sampled
        self._rows = rows
        self._budget = budget
        self._kept: dict[int, _Kept] = {}
        self._used = 0

    def __len__(self) -> int:
        """How many whole batches there are."""
        return len(self._tokens) // self._rows

    @property
    def kept_bytes(self) -> int:
        """Bytes that kept states take."""
        return self._used

    def batch(self, index: int) -> Batch:
        """One batch, from what is kept where it is."""
        rows = slice(index * self._rows, (index + 1) * self._rows)
        tokens, sampled = mx.array(self._tokens[rows]), mx.array(self._sampled[rows])
        kept = self._kept.get(index)
        if kept is None:
            kept = self._compute(tokens)
            # The lazy graph would otherwise keep the forward's own arrays.
            mx.eval(kept.lower, kept.final, kept.normaliser)
            if self._used + kept.nbytes <= self._budget:
                self._kept[index] = kept
                self._used += kept.nbytes
        lower = unpack(*kept.lower, self._base.dtype)
        return Batch(tokens, sampled, lower, kept.final, kept.normaliser)

    def _compute(self, tokens: mx.array) -> _Kept:
        target = self._base.target
        final = target.forward(tokens, None)
        states = target.features(final)
        lower = states[..., : states.shape[-1] - final.shape[-1]]
        flat = final.reshape(-1, final.shape[-1])
        step = max(1, LOGITS_AT_ONCE // target.vocabulary)
        parts = []
        for n in range(0, len(flat), step):
            parts.append(mx.logsumexp(target.logits(flat[n : n + step]), axis=-1))
            mx.eval(parts[-1])
        return _Kept(pack(lower), final, mx.concatenate(parts).reshape(tokens.shape))


def pack(states: mx.array) -> tuple[mx.array, mx.array]:
    """States in 8 bits: int8 of the same shape, and a float32 scale for each group of numbers.

    Groups are small because a few dimensions of a model's states are far larger than the rest.
    """
    size = math.gcd(states.shape[-1], GROUP)
    grouped = states.astype(mx.float32).reshape(*states.shape[:-1], -1, size)
    scale = mx.max(mx.abs(grouped), axis=-1, keepdims=True) / 127
    numbers = mx.round(grouped / mx.maximum(scale, 1e-12)).astype(mx.int8)
    return numbers.reshape(states.shape), scale[..., 0]


def unpack(numbers: mx.array, scale: mx.array, dtype: mx.Dtype) -> mx.array:
    """What `pack` packed, in a type."""
    grouped = numbers.reshape(*scale.shape, -1).astype(mx.float32) * scale[..., None]
    return grouped.reshape(numbers.shape).astype(dtype)
