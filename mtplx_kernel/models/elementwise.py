"""Norms and rotary embeddings for CPUs: the same arithmetic in fewer, compiled steps.

On a CPU MLX runs `mx.fast.rms_norm` and `mx.fast.rope` as chains of small operations, and computes
the angles of a position anew in every layer, for queries and for keys. In a decode step of a small
model that is a tenth of the time. Here the angles are computed once a forward, and the rest of the
chain is compiled into one step. The results are the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.positional_encoding import RoPE

MOST_TOKENS = 32
"""Wider blocks are prompts, whose products dwarf all this: they take MLX's own way."""


def speed_up(model: Any) -> None:
    """Let a model's plain RMS norms and rotary embeddings run compiled, in place."""
    angles: dict[tuple[int, float, float], Angles] = {}
    for module in model.modules():
        if type(module) is RMSNorm:
            module.__class__ = CompiledRMSNorm
        elif type(module) is RoPE and not module.traditional:
            key = (module.dims, float(module.base), float(module.scale))
            shared = angles.setdefault(key, Angles(*key))
            module.__class__ = CompiledRoPE
            object.__setattr__(module, "angles", shared)


class CompiledRMSNorm(RMSNorm):
    """`RMSNorm` in one step for a few tokens."""

    def __call__(self, x: mx.array) -> mx.array:
        """Normalise the last axis."""
        if x.shape[-2] > MOST_TOKENS:
            return mx.fast.rms_norm(x, self["weight"], self.eps)
        normed: mx.array = _rms_norm(x, self["weight"], self.eps)
        return normed


class CompiledRoPE(RoPE):
    """`RoPE` in one step for a few tokens, with angles that all layers share."""

    angles: Angles

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotate by position: shape (rows, heads, tokens, dim), `offset` a number or (rows,)."""
        if x.shape[-2] > MOST_TOKENS or x.ndim != 4:
            return mx.fast.rope(
                x, self.dims, traditional=False, base=self.base, scale=self.scale, offset=offset
            )
        cos, sin = self.angles.at(offset, x.shape[-2])
        rotated: mx.array = _rotate(x[..., : self.dims], cos, sin)
        if x.shape[-1] == self.dims:
            return rotated
        return mx.concatenate([rotated, x[..., self.dims :]], axis=-1)


class Angles:
    """Cosines and sines of the positions of the current forward.

    Parameters
    ----------
    dims
        How many dimensions are rotated.
    base, scale
        As in `RoPE`.
    """

    def __init__(self, dims: int, base: float, scale: float) -> None:
        self._half = dims // 2
        self._base, self._scale = base, scale
        self._offset: int | mx.array | None = None
        self._tokens = 0
        self._known: tuple[mx.array, mx.array] | None = None

    def at(self, offset: int | mx.array, tokens: int) -> tuple[mx.array, mx.array]:
        """Cosine and sine, shape (tokens, dims / 2), or (rows, 1, tokens, dims / 2)."""
        same = offset is self._offset or (isinstance(offset, int) and self._is(offset))
        if self._known is None or not same or tokens != self._tokens:
            self._offset, self._tokens = offset, tokens
            self._known = self._compute(offset, tokens)
        return self._known

    def _is(self, offset: int) -> bool:
        return isinstance(self._offset, int) and self._offset == offset

    def _compute(self, offset: int | mx.array, tokens: int) -> tuple[mx.array, mx.array]:
        start = offset if isinstance(offset, int) else offset[:, None, None]
        positions = (mx.arange(tokens, dtype=mx.float32) + start) * self._scale
        steps = mx.arange(self._half, dtype=mx.float32)
        log_base = mx.log(mx.array(self._base, mx.float32))
        theta = positions[..., None] * mx.exp(steps * -(log_base / self._half))
        return mx.cos(theta), mx.sin(theta)


@mx.compile
def _rms_norm(x: mx.array, weight: mx.array, eps: float) -> Any:
    return weight * (x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + eps))


@mx.compile
def _rotate(x: mx.array, cos: mx.array, sin: mx.array) -> Any:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
