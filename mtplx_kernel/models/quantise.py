"""Quantise a model as mlx-lm does, and its MTP head with more care; nothing is computed here."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

from mtplx_kernel.errors import InvalidRequest

if TYPE_CHECKING:
    import mlx.core as mx

    from mtplx_kernel.heads.base import Head

BITS = (4, 6, 8)
GROUP_SIZES = (32, 64, 128)
WHOLE_HEAD = 16
"""As a head's bits: leave it in the checkpoint's own precision."""
SENSITIVE_BITS = 8
_SENSITIVE = re.compile(
    r"fc|embed|output|(.*\.)?(\w*router|\w*gate)(\.(gate|gate_proj|proj|classifier))?"
)


def check_options(bits: int | None, group_size: int, head_bits: int | None) -> None:
    """Refuse what is not offered.

    Raises
    ------
    InvalidRequest
        One line that says what is allowed.
    """
    if bits is not None and bits not in BITS:
        raise InvalidRequest(
            f"bits is {bits!r}; allowed are 4, 6 and 8, or none to quantise nothing"
        )
    if head_bits is not None and head_bits not in (*BITS, WHOLE_HEAD):
        raise InvalidRequest(
            f"head_bits is {head_bits!r}; allowed are 4, 6 and 8, or {WHOLE_HEAD} to keep the"
            " head's precision"
        )
    if group_size not in GROUP_SIZES:
        raise InvalidRequest(f"group_size is {group_size!r}; allowed are 32, 64 and 128")


def quantise_target(
    model: Any, config: dict[str, Any], bits: int, group_size: int, name: str
) -> tuple[dict[str, Any], int]:
    """Quantise a model in place by mlx-lm's own function and the family's own rule.

    Returns
    -------
    tuple
        The config to write, and how many layers stay whole because the group size does not divide
        their width.

    Raises
    ------
    InvalidRequest
        If it is quantised already, or the group size fits no layer.
    """
    from mlx_lm.utils import quantize_model

    if is_quantised(model):
        known = (config.get("quantization") or {}).get("bits")
        raise InvalidRequest(
            f"{name} is already quantised{f' to {known} bits' if known else ''}; convert it without"
            " bits to copy it, or take the original, or dequantise it first (mlx_lm.convert"
            " --dequantize)"
        )
    widths = [m.weight.shape[-1] for _, m in model.named_modules() if hasattr(m, "to_quantized")]
    left = sum(width % group_size != 0 for width in widths)
    if left == len(widths):
        raise _refusal(name, group_size, "no layer's width is a multiple of that")
    _cast(model, config)
    try:
        with redirect_stdout(StringIO()):  # It prints a summary of its own.
            _, config = quantize_model(model, config, group_size, bits)
    except ValueError as err:
        raise _refusal(name, group_size, " ".join(str(err).split())) from err
    config.get("text_config", {}).pop("quantization_config", None)
    return config, left


def _cast(model: Any, config: dict[str, Any]) -> None:
    """Give what is not quantised the type that the config names, as mlx-lm does before it."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    from mlx_lm.convert import MODEL_CONVERSION_DTYPES

    name = config.get("torch_dtype") or config.get("text_config", {}).get("dtype")
    if name not in MODEL_CONVERSION_DTYPES:
        return
    dtype = getattr(mx, name)
    casts = getattr(model, "cast_predicate", lambda _: True)

    def cast(path: str, array: mx.array) -> mx.array:
        return array.astype(dtype) if casts(path) and _is_float(array) else array

    model.update(tree_map_with_path(cast, model.parameters()))


def _is_float(array: mx.array) -> bool:
    import mlx.core as mx

    return bool(mx.issubdtype(array.dtype, mx.floating))


def quantise_head(head: Head, model: Any, bits: int, group_size: int, name: str) -> None:
    """Quantise a head in place by its target's rule, with 8 bits or more where errors cost most.

    These are the fusing projection, routers and gates of experts, an own embedding and an own
    output. Norms and router biases are not touched.

    Parameters
    ----------
    head
        A checkpoint's own.
    model
        The target, for its family's rule.

    Raises
    ------
    InvalidRequest
        If it is quantised already, or the group size fits no layer.
    """
    import mlx.nn as nn

    if is_quantised(head):
        raise InvalidRequest(
            f"the head of {name} is already quantised; convert it with head_bits {WHOLE_HEAD} to"
            " copy it, or take the original checkpoint"
        )
    rule = getattr(model, "quant_predicate", None)
    # Some rules read the layer's number; a head's layers are built like the model's last one.
    last = f"model.layers.{len(model.layers) - 1}."

    def choose(path: str, module: Any) -> bool | dict[str, int]:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group_size:
            return False
        path = re.sub(r"^heads\.\d+\.", "", path)
        as_last = re.sub(r"^layers\.\d+\.", last, path)
        chosen = True if rule is None else rule(as_last, module)
        if not chosen:
            return False
        asked = chosen.get("bits", bits) if isinstance(chosen, dict) else bits
        least = SENSITIVE_BITS if _SENSITIVE.fullmatch(path) else asked
        return {"group_size": group_size, "bits": max(bits, least)}

    nn.quantize(head, group_size, bits, class_predicate=choose)
    if not is_quantised(head):
        raise _refusal(f"the head of {name}", group_size, "no layer's width is a multiple of that")


def forget_fp8(model: Any, config: dict[str, Any]) -> None:
    """Drop what a config says of fp8 weights that came out whole."""
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method == "fp8" and not is_quantised(model):
        del config["quantization_config"]
        config.get("text_config", {}).pop("quantization_config", None)


def is_quantised(module: Any) -> bool:
    """Whether any of its layers holds packed weights."""
    return any("scales" in inner for _, inner in module.named_modules())


def _refusal(name: str, group_size: int, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} cannot be quantised in groups of {group_size}: {reason}; try another of 32, 64"
        " and 128"
    )
