"""Latent attention (MLA): its mask, and its published projection split as mlx-lm has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask


def latent_mask(states: mx.array, cache: Any) -> Any:
    """A mask as an array or None: latent attention adds scores to it, so no name will do."""
    return create_attention_mask(states, cache, return_array=True)


def split_latent(
    weights: dict[str, mx.array], attention: str, config: Mapping[str, Any]
) -> dict[str, mx.array]:
    """Split the projection from latents to keys and values, for mlx-lm's attention.

    Parameters
    ----------
    weights
        By name.
    attention
        Where the attention stands, such as "layers.0.self_attn".
    config
        The model's: `num_attention_heads`, `qk_nope_head_dim`, `kv_lora_rank`.

    Returns
    -------
    dict
        With `ATTENTION.embed_q.weight`, shape (heads, latent, key), and
        `ATTENTION.unembed_out.weight`, shape (heads, value, latent), instead of
        `ATTENTION.kv_b_proj`, which comes back unquantised; as it was where they are there.
    """
    split = dict(weights)
    base = f"{attention}.kv_b_proj"
    whole = split.pop(f"{base}.weight", None)
    if whole is None:
        return split
    if f"{base}.scales" in split:
        scales, biases = split.pop(f"{base}.scales"), split.pop(f"{base}.biases", None)
        whole = _dense(whole, scales, biases, int(config["kv_lora_rank"]))
    heads, keys = int(config["num_attention_heads"]), int(config["qk_nope_head_dim"])
    whole = whole.reshape(heads, -1, whole.shape[-1])
    split[f"{attention}.embed_q.weight"] = mx.contiguous(whole[:, :keys].swapaxes(-1, -2))
    split[f"{attention}.unembed_out.weight"] = mx.contiguous(whole[:, keys:])
    return split


def _dense(weight: mx.array, scales: mx.array, biases: mx.array | None, columns: int) -> mx.array:
    bits, group = weight.shape[-1] * 32 // columns, columns // scales.shape[-1]
    return mx.dequantize(weight, scales, biases, group_size=group, bits=bits)
