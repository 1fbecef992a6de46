"""The formulas of transformer parts in NumPy, in float64, on tensors named as published.

Nothing here knows MLX: it is what the heads are checked against. All sequences are one row, shape
(length, size), computed as a whole and causally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tensors = Mapping[str, Array]


def rms(x: Array, weight: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return normed


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return e


def rotated(x: Array, dims: int, base: float, interleaved: bool = False) -> Array:
    """Rotary positions 0, 1, … on the first `dims` of (length, heads, dim)."""
    angles = np.arange(len(x))[:, None] / base ** (np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    turned = x.copy()
    if interleaved:
        first, second = x[..., 0:dims:2], x[..., 1:dims:2]
        turned[..., 0:dims:2] = first * cos - second * sin
        turned[..., 1:dims:2] = second * cos + first * sin
    else:
        half = dims // 2
        first, second = x[..., :half], x[..., half:dims]
        turned[..., :half] = first * cos - second * sin
        turned[..., half:dims] = second * cos + first * sin
    return turned


def attended(
    q: Array,
    k: Array,
    v: Array,
    *,
    window: int | None = None,
    sinks: Array | None = None,
) -> Array:
    """Causal attention of (length, heads, dim), key heads shared by neighbouring query heads."""
    length, heads, dim = q.shape
    k = np.repeat(k, heads // k.shape[1], axis=1)
    v = np.repeat(v, heads // v.shape[1], axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
    age = np.arange(length)[:, None] - np.arange(length)
    seen = age >= 0 if window is None else (age >= 0) & (age < window)
    scores = np.where(seen, scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (heads, length, 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = softmax(scores)[..., :length]
    out: Array = np.einsum("hqk,khd->qhd", weights, v)
    return out


@dataclass(frozen=True)
class Attention:
    """Grouped attention with what the families add to it.

    `gate`: "none", "elementwise" (the second half of each head's query rows) or "headwise".
    """

    heads: int
    kv_heads: int
    dim: int
    base: float
    rotary: int
    eps: float = 1e-5
    norms: bool = False
    gate: str = "none"
    window: int | None = None
    sinks: bool = False
    interleaved: bool = False
    value_scale: float = 1.0

    def __call__(self, x: Array, t: Tensors, at: str) -> Array:
        length = len(x)
        q = linear(x, t, f"{at}.q_proj").reshape(length, self.heads, -1)
        k = linear(x, t, f"{at}.k_proj").reshape(length, self.kv_heads, -1)
        v = linear(x, t, f"{at}.v_proj").reshape(length, self.kv_heads, -1) * self.value_scale
        q, open_gate = q[..., : self.dim], q[..., self.dim :]
        if self.norms:
            q = rms(q, t[f"{at}.q_norm.weight"], self.eps)
            k = rms(k, t[f"{at}.k_norm.weight"], self.eps)
        if self.rotary:
            q = rotated(q, self.rotary, self.base, self.interleaved)
            k = rotated(k, self.rotary, self.base, self.interleaved)
        sinks = t[f"{at}.attention_sink_bias"] if self.sinks else None
        out = attended(q, k, v, window=self.window, sinks=sinks)
        if self.gate == "elementwise":
            out = out * sigmoid(open_gate)
        if self.gate == "headwise":
            out = out * sigmoid(linear(x, t, f"{at}.g_proj"))[..., None]
        return linear(out.reshape(length, -1), t, f"{at}.o_proj")


def linear(x: Array, t: Tensors, at: str) -> Array:
    out = x @ t[f"{at}.weight"].T
    return out + t[f"{at}.bias"] if f"{at}.bias" in t else out


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def mlp(x: Array, t: Tensors, at: str) -> Array:
    names = [f"{at}.{part}_proj.weight" for part in ("gate", "up", "down")]
    return swiglu(x, *(t[name] for name in names))


def softmax_mixture(x: Array, t: Tensors, at: str, top: int, normed: bool) -> Array:
    """Qwen's: the likeliest experts by softmax, beside a shared one with a gate of its own."""
    likely = softmax(x @ t[f"{at}.gate.weight"].T)
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        chosen = np.argsort(-likely[i])[:top]
        share = likely[i][chosen]
        share = share / share.sum() if normed else share
        for e, s in zip(chosen, share, strict=True):
            out[i] += s * mlp(row[None], t, f"{at}.experts.{e}")[0]
    return out + sigmoid(x @ t[f"{at}.shared_expert_gate.weight"].T) * mlp(
        x, t, f"{at}.shared_expert"
    )


@dataclass(frozen=True)
class Decoder:
    """A decoder layer: attention, then an MLP or what `feedforward` is, each behind a norm."""

    at: str
    attention: Attention
    eps: float = 1e-5
    second_norm: str = "post_attention_layernorm"
    feedforward: Callable[[Array, Tensors, str], Array] = mlp

    def __call__(self, x: Array, t: Tensors) -> Array:
        normed = rms(x, t[f"{self.at}.input_layernorm.weight"], self.eps)
        x = x + self.attention(normed, t, f"{self.at}.self_attn")
        normed = rms(x, t[f"{self.at}.{self.second_norm}.weight"], self.eps)
        return x + self.feedforward(normed, t, f"{self.at}.mlp")


@dataclass(frozen=True)
class Pass:
    """One pass of a head: from target states and embeddings to its last layer's states."""

    tensors: Tensors
    enorm: str
    hnorm: str
    fc: str
    decoder: Decoder
    eps: float = 1e-5
    hidden_first: bool = False

    def __call__(self, features: Array, embedded: Array) -> Array:
        t = self.tensors
        e = rms(embedded, t[f"{self.enorm}.weight"], self.eps)
        h = rms(features, t[f"{self.hnorm}.weight"], self.eps)
        pair = [h, e] if self.hidden_first else [e, h]
        return self.decoder(linear(np.concatenate(pair, axis=-1), t, self.fc), t)
