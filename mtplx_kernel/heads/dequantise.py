"""fp8 checkpoints: e4m3 weights with a scale for each block, row or tensor, as plain weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from mtplx_kernel.errors import ModelUnusable

BLOCK = (128, 128)
SUFFIXES = ("_scale_inv", "_scale")
E8M0_BIAS = 127


def without_fp8(weights: dict[str, mx.array], config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Replace fp8 tensors and their scales by bfloat16 tensors.

    Parameters
    ----------
    weights
        By name; `x_scale_inv` or `x_scale` holds the scales of `x`, which MLX reads as uint8.
        Scales that are uint8 themselves are exponents of two (e8m0).
    config
        The model's; `quantization_config.weight_block_size` is the block, 128 by 128 by default.
        Where the scales are not as many as that makes, their number tells the block.

    Returns
    -------
    dict
        The rest is as it was.

    Raises
    ------
    ModelUnusable
        If scales do not go with their weight, or are missing.
    """
    size = (config.get("quantization_config") or {}).get("weight_block_size") or BLOCK
    block = (int(size[0]), int(size[-1]))
    plain = dict(weights)
    for name, scales in weights.items():
        suffix = next((s for s in SUFFIXES if name.endswith(s)), None)
        base = name[: -len(suffix)] if suffix else ""
        if base in weights and weights[base].dtype == mx.uint8:
            spread = _spread(scales, weights[base].shape, block, name)
            plain[base] = (mx.from_fp8(weights[base], dtype=mx.float32) * spread).astype(
                mx.bfloat16
            )
            del plain[name]
    _refuse_bare_codes(plain)
    return plain


def _refuse_bare_codes(weights: Mapping[str, mx.array]) -> None:
    for name, array in weights.items():
        if array.dtype == mx.uint8 and not name.endswith(".scales"):
            raise ModelUnusable(
                f"the head's {name} is in 8 bits without a scale; it needs {name}_scale_inv or "
                f"{name}_scale: fetch the checkpoint anew"
            )


def _spread(
    scales: mx.array, shape: tuple[int, ...], block: tuple[int, int], name: str
) -> mx.array:
    """Scales that multiply a weight of that shape."""
    factors = scales.astype(mx.float32)
    if scales.dtype == mx.uint8:
        factors = mx.power(mx.array(2.0), factors - E8M0_BIAS)
    if scales.size == 1:
        return factors.reshape(())
    if scales.shape == shape[: scales.ndim]:
        return factors.reshape(*scales.shape, *[1] * (len(shape) - scales.ndim))
    if scales.ndim != len(shape) or scales.ndim < 2 or scales.shape[:-2] != shape[:-2]:
        raise _misfit(name, scales.shape, shape)
    for axis in (-2, -1):
        size, count = shape[axis], scales.shape[axis]
        each = block[axis] if -(-size // block[axis]) == count else size // max(count, 1)
        if -(-size // max(each, 1)) != count:
            raise _misfit(name, scales.shape, shape)
        factors = mx.repeat(factors, each, axis=axis)
    return factors[..., : shape[-2], : shape[-1]]


def _misfit(name: str, scales: tuple[int, ...], shape: tuple[int, ...]) -> ModelUnusable:
    return ModelUnusable(
        f"the head's {name} has shape {scales}, which does not go with a weight of {shape}; "
        "it must hold one scale for each block, row or tensor"
    )
