"""Models and heads without quantisation, in float32: on CPUs the fast BLAS multiplies no other."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear
from mlx_lm.utils import dequantize_model


def dense(module: Any) -> Any:
    """The module, a model or a head, changed in place to float32 without quantisation."""
    _dequantise_latent(module)
    module = dequantize_model(module)
    module.set_dtype(mx.float32)
    mx.eval(module.parameters())
    mx.clear_cache()
    return module


def _dequantise_latent(module: nn.Module) -> None:
    """The projections of latent attention, which mlx-lm's own function leaves out."""
    whole = []
    for path, inner in module.named_modules():
        if isinstance(inner, QuantizedMultiLinear):
            weight = mx.dequantize(
                inner.weight,
                inner.scales,
                inner.biases,
                group_size=inner.group_size,
                bits=inner.bits,
                mode=inner.mode,
            )
            heads, rows, columns = weight.shape
            plain = MultiLinear(columns, rows, heads)
            plain.weight = weight
            whole.append((path, plain))
    if whole:
        module.update_modules(tree_unflatten(whole))
