"""Which family serves a model, and the classes that load a model beside its head's tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mlx_lm.utils import MODEL_REMAPPING, _get_classes

from mtplx_kernel.heads import (
    bailing_hybrid,
    bailing_moe,
    deepseek,
    ernie4_5_moe,
    exaone_moe,
    glm4_moe,
    glm4_moe_lite,
    longcat_flash,
    mimo,
    mimo_v2_flash,
    nemotron_h,
    qwen3_5,
    qwen3_next,
    step3p5,
)
from mtplx_kernel.heads.files import plain
from mtplx_kernel.heads.native import Family

FAMILIES: tuple[Family, ...] = (
    qwen3_next.FAMILY,
    qwen3_5.FAMILY,
    mimo.FAMILY,
    mimo_v2_flash.FAMILY,
    step3p5.FAMILY,
    ernie4_5_moe.FAMILY,
    exaone_moe.FAMILY,
    *deepseek.FAMILIES,
    glm4_moe.FAMILY,
    glm4_moe_lite.FAMILY,
    nemotron_h.FAMILY,
    longcat_flash.FAMILY,
    bailing_moe.FAMILY,
    bailing_hybrid.FAMILY,
)


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The family that serves a model, by its config's `model_type`; None where there is none."""
    for part in (config, config.get("text_config") or {}):
        kind = str(part.get("model_type"))
        for family in FAMILIES:
            if MODEL_REMAPPING.get(kind, kind) in family.model_types:
                return family
    return None


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config of the text model, with what is known of its quantisation."""
    text: dict[str, Any] = copy.deepcopy(dict(config.get("text_config") or config))
    for key in ("quantization_config", "tie_word_embeddings"):
        if key in config:
            text.setdefault(key, copy.deepcopy(config[key]))
    return text


def classes_without_head(config: dict[str, Any]) -> tuple[type, type]:
    """Model and argument classes for mlx-lm's `load_model`, as its `get_model_classes`.

    The model class drops exactly the head's tensors before its own `sanitize`: several families'
    own rules would let some of them through, and the strict load would fail.

    Raises
    ------
    ValueError
        If mlx-lm does not know the `model_type`.
    """
    model_class, args_class = _get_classes(config)
    family = family_of(config)
    if family is None:
        return model_class, args_class
    text, own = text_config(config), getattr(model_class, "sanitize", None)

    def sanitize(self: Any, weights: dict[str, Any]) -> dict[str, Any]:
        kept = {n: a for n, a in weights.items() if not family.owns(plain(n), text)}
        return kept if own is None else own(self, kept)

    return type(model_class.__name__, (model_class,), {"sanitize": sanitize}), args_class
