"""Putting a checkpoint's tensors into a head, and refusing anything but a perfect fit."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Head
from mtplx_kernel.heads.centred import damaged_norms
from mtplx_kernel.heads.native import Weights


def fill(head: Head, weights: Weights, what: str, *, lazy: bool = False) -> None:
    """Quantise the modules whose tensors are, then load all tensors.

    Parameters
    ----------
    head
        With parameters of any value.
    weights
        One for each parameter, and for each quantised module its scales and biases.
    what
        What the user has, for errors: "the mimo head in model.safetensors".
    lazy
        Read the norms only.

    Raises
    ------
    ModelUnusable
        If tensors are missing, unknown, of another shape, or cannot be read, or a norm is not
        finite.
    """
    try:
        nn.quantize(head, class_predicate=lambda path, module: _quantisation(path, module, weights))
    except (ValueError, KeyError) as err:
        raise ModelUnusable(
            f"{what} is quantised in an unknown way: {err}; convert it anew"
        ) from err
    needed: Any = tree_flatten(head.parameters(), destination={})
    _refuse_misfits(needed, weights, what)
    head.load_weights(list(weights.items()))
    head.eval()
    try:
        damaged = damaged_norms(weights)
        if not lazy:
            mx.eval(head.parameters())
    except (RuntimeError, ValueError) as err:
        reason = " ".join(str(err).split())[:200]
        raise ModelUnusable(f"{what} cannot be read: {reason}; fetch it again") from err
    if damaged:
        raise ModelUnusable(
            f"{what} is damaged: {_some(damaged)} must be finite numbers; fetch or convert it anew"
        )


def _quantisation(path: str, module: Any, weights: Weights) -> Any:
    if not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
        return False
    return infer_quant_config(path, module, weights)


def _refuse_misfits(needed: Weights, weights: Weights, what: str) -> None:
    if missing := sorted(needed.keys() - weights.keys()):
        raise ModelUnusable(
            f"{what} lacks {_some(missing)}; it needs all its tensors: fetch or convert it anew"
        )
    if extra := sorted(weights.keys() - needed.keys()):
        raise ModelUnusable(
            f"{what} holds {_some(extra)}, which this family does not have; "
            "it must be a head of this model"
        )
    for name, array in sorted(needed.items()):
        if weights[name].shape != array.shape:
            raise ModelUnusable(
                f"{what}: {name} has shape {weights[name].shape}, the model needs {array.shape}; "
                "it must be a head of this model"
            )


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
