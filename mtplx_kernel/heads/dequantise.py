"""fp8 checkpoints: e4m3 weights with a scale for each block, row or tensor, as plain weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

BLOCK = (128, 128)
SUFFIXES = ("_scale_inv", "_scale")


def without_fp8(weights: dict[str, mx.array], config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Replace fp8 tensors and their scales by bfloat16 tensors.

    Parameters
    ----------
    weights
        By name; `x_scale_inv` or `x_scale` holds the scales of `x`, which MLX reads as uint8.
    config
        The model's; `quantization_config.weight_block_size` is the block, 128 by 128 by default.

    Returns
    -------
    dict
        The rest is as it was.
    """
    block = (config.get("quantization_config") or {}).get("weight_block_size") or BLOCK
    plain = dict(weights)
    for name, scales in weights.items():
        suffix = next((s for s in SUFFIXES if name.endswith(s)), None)
        base = name[: -len(suffix)] if suffix else ""
        if base in weights and weights[base].dtype == mx.uint8:
            plain[base] = _scaled(weights[base], scales, (int(block[0]), int(block[1])))
            del plain[name]
    return plain


def _scaled(weight: mx.array, scales: mx.array, block: tuple[int, int]) -> mx.array:
    values: mx.array = mx.from_fp8(weight, dtype=mx.float32)
    scales = scales.astype(mx.float32)
    rows, columns = weight.shape[-2:]
    if scales.ndim == weight.ndim and scales.shape[-2:] != (rows, 1):
        scales = mx.repeat(mx.repeat(scales, block[0], axis=-2), block[1], axis=-1)
        scales = scales[..., :rows, :columns]
    elif scales.ndim == weight.ndim - 1 and scales.ndim > 0:
        scales = scales[..., None]
    return (values * scales).astype(mx.bfloat16)
