"""Heads that come with a checkpoint: one module for all families, each family a page of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from mtplx_kernel.heads.base import Head, Shared

Weights = dict[str, mx.array]
Config = Mapping[str, Any]


def _rms_norm_eps(config: Config) -> float:
    return float(config.get("rms_norm_eps", 1e-6))


def _one_cache(config: Config) -> list[Any]:
    return [KVCache()]


def _mask(states: mx.array, cache: Any) -> Any:
    return create_attention_mask(states, cache)


@dataclass(frozen=True, slots=True)
class Family:
    """How one family's checkpoints hold their head, and how it runs.

    With e the embedding of token i + 1 and h the target's state at i, a pass is
    ``y = layers(fc([enorm(e), hnorm(h)]))``, and the draft logits are ``output(norm(y))``.

    Attributes
    ----------
    name
        What status and errors call it.
    model_types
        The config's `model_type` values that it serves.
    owns
        Whether a checkpoint tensor of that name belongs to the head, dropped layers included.
        Names come without `language_model.`: `model.language_model.x` as `model.x`.
    read
        From the head's tensors, named as for `owns`, to the parameters of `NativeHead`:
        `enorm.weight`, `hnorm.weight`, `fc.weight`, `layers.N.…`, `norm.weight`, and, where the
        head has its own, `embed.weight` and `output.weight`. Splits, stacks and renames as the
        checkpoint needs, of quantised tensors (`.scales`, `.biases`) as well; tensors left out
        are not used, tensors it does not know are kept under any name and refused by the loader.
        fp8 weights come dequantised. Where several heads follow one another, those of head S begin
        with `heads.S.`: see `mtplx_kernel.heads.chained`.
    layers
        Builds the head's layers from the config. Each is called as layer(states, mask, cache).
    hidden
        Whether the head reads the target's state after ("post") or before ("pre") its final norm.
    recycle
        Whether deeper passes take the head's state after ("post") or before ("pre") its own norm.
    concat
        "eh": embedding first. "he": hidden first.
    norm_eps
        Reads the epsilon of the head's norms from the config.
    final_norm
        Whether the head has a norm of its own before the output head.
    caches
        One mlx-lm cache for each layer.
    mask
        The attention mask of a layer, from its input states and its cache.
    original
        Given the names of all tensors of the folder's `model*.safetensors`, whether they are still
        in the published layout, by the rule of mlx-lm's own `sanitize`. Only for families whose
        published norms are zero-centred: there 1 is added to every norm of the head.
    stripped
        The prefix that a sidecar file with bare names leaves out, such as "mtp.".
    """

    name: str
    model_types: frozenset[str]
    owns: Callable[[str, Config], bool]
    read: Callable[[Weights, Config], Weights]
    layers: Callable[[Config], list[nn.Module]]
    hidden: Literal["post", "pre"] = "post"
    recycle: Literal["post", "pre"] = "post"
    concat: Literal["eh", "he"] = "eh"
    norm_eps: Callable[[Config], float] = _rms_norm_eps
    final_norm: bool = True
    caches: Callable[[Config], list[Any]] = _one_cache
    mask: Callable[[mx.array, Any], Any] = _mask
    original: Callable[[Mapping[str, tuple[int, ...]], Config], bool] | None = None
    stripped: str | None = None


class NativeHead(Head):
    """A checkpoint's own head.

    Parameters
    ----------
    family
        How it runs.
    config
        The model's config, the text part where it has parts.
    hidden
        Size of the hidden states.
    shared
        The target's embedding and output head.
    own_embed, own_output
        Whether the checkpoint holds an embedding or output head for the head alone.
    vocabulary
        How many ids they cover.
    """

    vocabulary = None

    def __init__(
        self,
        family: Family,
        config: Config,
        hidden: int,
        shared: Shared,
        *,
        own_embed: bool = False,
        own_output: bool = False,
        vocabulary: int = 0,
    ) -> None:
        super().__init__()
        self.family = family.name
        self.taps = ("final",) if family.hidden == "post" else (-1,)
        self._data, self._config, self._shared = family, config, shared
        eps = family.norm_eps(config)
        self.enorm = nn.RMSNorm(hidden, eps)
        self.hnorm = nn.RMSNorm(hidden, eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = family.layers(config)
        self.norm = nn.RMSNorm(hidden, eps) if family.final_norm else None
        self.embed = nn.Embedding(vocabulary, hidden) if own_embed else None
        self.output = nn.Linear(hidden, vocabulary, bias=False) if own_output else None

    def make_cache(self) -> list[Any]:
        """One mlx-lm cache for each layer."""
        return self._data.caches(self._config)

    def feed(self, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Run over true pairs; see `Head.feed`."""
        embed = self._shared.embed if self.embed is None else self.embed
        e, h = self.enorm(embed(tokens)), self.hnorm(features)
        pair = [e, h] if self._data.concat == "eh" else [h, e]
        y = self.fc(mx.concatenate(pair, axis=-1))
        for layer, c in zip(self.layers, cache, strict=True):
            y = layer(y, self._data.mask(y, c), c)
        return self._normed(y) if self._data.recycle == "post" else y

    def recur(self, hidden: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Run one step deeper; see `Head.recur`."""
        return self.feed(hidden, tokens, cache)

    def logits(self, hidden: mx.array) -> mx.array:
        """Draft logits, float32 of shape (..., vocabulary), from states of shape (..., hidden)."""
        states = hidden if self._data.recycle == "post" else self._normed(hidden)
        if self.output is not None:
            return self.output(states).astype(mx.float32)
        flat = self._shared.logits(states.reshape(-1, states.shape[-1]))
        return flat.reshape(*states.shape[:-1], -1)

    def _normed(self, states: mx.array) -> mx.array:
        return states if self.norm is None else self.norm(states)
