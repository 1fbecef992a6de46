"""A head that was trained from its target's own text, for models that come without one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from mtplx_kernel.heads.base import Head, Shared, Tap
from mtplx_kernel.heads.one_row import project

MOST_SIZE = 2**24
"""No model is larger in any of its sizes; products of larger ones are no array's shape."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shapes of a distilled head and of the target that it belongs to.

    Attributes
    ----------
    hidden, vocabulary, layers
        Of the target.
    taps
        Layers whose outputs are read, then "final".
    heads, kv_heads, head_dim, rope_base, intermediate, eps
        Of the head's one block.
    """

    hidden: int
    vocabulary: int
    layers: int
    taps: tuple[Tap, ...]
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_base: float = 10000.0
    eps: float = 1e-5

    def to_json(self) -> str:
        """As the file's metadata holds it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HeadConfig:
        """Read back what `to_json` wrote.

        Raises
        ------
        ValueError, TypeError, KeyError
            If it is not that, or no head can be of such shapes.
        """
        fields = json.loads(text)
        if not isinstance(fields["taps"], list):
            raise ValueError(f"taps are a list, unlike {fields['taps']!r}")
        config = cls(**{**fields, "taps": tuple(fields["taps"])})
        config.check()
        return config

    def check(self) -> None:
        """Raise ValueError unless a head can be of these shapes."""
        sizes = ("hidden", "vocabulary", "layers", "heads", "kv_heads", "head_dim", "intermediate")
        for name in sizes:
            size = getattr(self, name)
            if type(size) is not int or not 0 < size <= MOST_SIZE:
                raise ValueError(f"{name} is a whole number above 0, unlike {size!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads are a multiple of kv_heads, unlike {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is even, unlike {self.head_dim}")
        for name in ("rope_base", "eps"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"{name} is a number above 0, unlike {value!r}")
        for tap in self.taps:
            if tap != "final" and not (type(tap) is int and -self.layers <= tap < self.layers):
                raise ValueError(f"a tap is 'final' or one of {self.layers} layers, unlike {tap!r}")
        if not self.taps:
            raise ValueError("a head reads at least one state")


class Attention(nn.Module):
    """Grouped-query attention without biases."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.rope = nn.RoPE(config.head_dim, traditional=False, base=config.rope_base)

    def project(self, x: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Rotated queries and keys, and values, shape (rows, heads, width, head_dim) each."""
        rows, width, _ = x.shape

        def split(y: mx.array, heads: int) -> mx.array:
            return y.reshape(rows, width, heads, self._dim).transpose(0, 2, 1, 3)

        rope: Any = self.rope  # its stub knows of one offset only, not of one a row
        queries = rope(split(self.q_proj(x), self._heads), offset=offset)
        keys = rope(split(self.k_proj(x), self._kv_heads), offset=offset)
        return queries, keys, split(self.v_proj(x), self._kv_heads)

    def merge(self, mixed: mx.array) -> mx.array:
        """From the heads' outputs, shape (rows, heads, width, head_dim), to the hidden size."""
        rows, _, width, _ = mixed.shape
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(rows, width, -1))

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """Attend all that the cache holds of each row, x's own tokens included."""
        queries, keys, values = self.project(x, cache.offset)
        keys, values = cache.update_and_fetch(keys, values)
        mixed = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask
        )
        return self.merge(mixed)


class MLP(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """Shape (..., hidden) to the same."""
        gate, up = project(x, self.gate_proj.weight), project(x, self.up_proj.weight)
        return project(nn.silu(gate) * up, self.down_proj.weight)


class DistilledHead(Head):
    """One decoder block over a pair's states and token, with the target's output head.

    The first pass fuses the target's states at several depths; deeper passes take the head's own
    state, after its final norm, in the place of that fusion.

    Parameters
    ----------
    config
        Its shapes.
    shared
        The target's embedding and output head.
    vocabulary
        The drafted ids, int32 of shape (columns,), the most frequent first.
    """

    family = "distilled"

    def __init__(self, config: HeadConfig, shared: Shared, vocabulary: mx.array) -> None:
        super().__init__()
        self._config, self._shared = config, shared
        self._vocabulary = vocabulary
        self._output = output_rows(shared.output, vocabulary)
        self.taps = config.taps
        hidden, eps = config.hidden, config.eps
        self.tap_norms = [nn.RMSNorm(hidden, eps) for _ in config.taps]
        self.fuse = nn.Linear(len(config.taps) * hidden, hidden, bias=False)
        self.hnorm = nn.RMSNorm(hidden, eps)
        self.enorm = nn.RMSNorm(hidden, eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = MLP(config)
        self.norm = nn.RMSNorm(hidden, eps)

    @property
    def config(self) -> HeadConfig:
        """Its shapes."""
        return self._config

    @property
    def vocabulary(self) -> mx.array:  # type: ignore[override]
        """The drafted ids, int32 of shape (columns,)."""
        return self._vocabulary

    @property
    def gathered(self) -> list[mx.array]:
        """What it holds beside its parameters: the drafted ids, and their rows of the output."""
        rows = [a for a in self._output.values() if isinstance(a, mx.array)]
        return [self._vocabulary, *rows]

    def make_cache(self) -> list[Any]:
        """One cache: the head has one block."""
        return [KVCache()]

    def feed(self, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """As `Head.feed`."""
        return self.recur(self.fused(features), tokens, cache)

    def recur(self, hidden: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """As `Head.recur`."""
        x = self.joined(hidden, self._shared.embed(tokens))
        mask = create_attention_mask(x, cache[0])
        x = x + self.self_attn(self.input_layernorm(x), mask, cache[0])
        return self.finished(x)

    def logits(self, hidden: mx.array, columns: int | None = None) -> mx.array:
        """As `Head.logits`; of the first columns only, if so many are wanted."""
        return draft_logits(self._output, hidden, columns).astype(mx.float32)

    def fused(self, features: mx.array) -> mx.array:
        """What the first pass takes for the hidden state: (..., taps * hidden) to (..., hidden)."""
        states = mx.split(features, len(self.tap_norms), axis=-1)
        normed = [norm(state) for norm, state in zip(self.tap_norms, states, strict=True)]
        return project(mx.concatenate(normed, axis=-1), self.fuse.weight)

    def joined(self, hidden: mx.array, embedded: mx.array) -> mx.array:
        """The block's input, from hidden states and embeddings of the tokens after them."""
        return self.fc(mx.concatenate([self.hnorm(hidden), self.enorm(embedded)], axis=-1))

    def finished(self, x: mx.array) -> mx.array:
        """The head's states, from the residual stream after attention."""
        states: mx.array = self.norm(x + self.mlp(self.post_attention_layernorm(x)))
        return states


def output_rows(output: nn.Module, ids: mx.array) -> dict[str, Any]:
    """The rows of a target's output projection that draft: its arrays, and how they are packed."""
    rows: dict[str, Any] = {
        name: output[name][ids] for name in ("weight", "scales", "biases", "bias") if name in output
    }
    if "scales" in rows:
        rows["packing"] = {
            "group_size": output.group_size,
            "bits": output.bits,
            "mode": getattr(output, "mode", "affine"),
        }
    mx.eval([a for a in rows.values() if isinstance(a, mx.array)])
    return rows


def draft_logits(rows: Mapping[str, Any], hidden: mx.array, columns: int | None = None) -> mx.array:
    """Product with `output_rows`: (..., hidden) to (..., columns), in the product's own type."""
    if columns is not None:
        rows = {k: a[:columns] if isinstance(a, mx.array) else a for k, a in rows.items()}
    if "scales" in rows:
        logits = mx.quantized_matmul(
            hidden,
            rows["weight"],
            rows["scales"],
            rows.get("biases"),
            transpose=True,
            **rows["packing"],
        )
    else:
        logits = project(hidden, rows["weight"])
    return logits + rows["bias"] if "bias" in rows else logits
