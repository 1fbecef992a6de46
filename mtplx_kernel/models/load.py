"""From a folder to a model that is ready to decode. Runs on the thread that will own the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, load_tokenizer

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.families import classes_without_head
from mtplx_kernel.models import blas
from mtplx_kernel.models.dense import dense as dense
from mtplx_kernel.models.elementwise import speed_up
from mtplx_kernel.models.head import AUTO, LoadedHead, load_head
from mtplx_kernel.models.progress import Stages, untold
from mtplx_kernel.models.target import Target

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
UNBOUNDED = 2**31


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a loaded model, as plain data.

    Attributes
    ----------
    precision
        Type of the weights in memory, such as "float32" or "4-bit, bfloat16".
    context_length
        Most ids a request may hold.
    """

    name: str
    path: str
    family: str
    parameters: int
    precision: str
    device: str
    vocabulary: int
    context_length: int
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its owner thread, with the head that drafts for it, if there is one."""

    facts: ModelFacts
    target: Target
    tokenizer: Any
    head: LoadedHead | None = None


def load(
    folder: Path,
    name: str,
    head: str = AUTO,
    shipped: str | None = None,
    stages: Stages = untold,
) -> LoadedModel:
    """Load an mlx-lm folder.

    Parameters
    ----------
    folder
        Holds config.json, safetensors and the tokenizer.
    name
        What the user calls it.
    head, shipped
        Which head drafts for it: see `mtplx_kernel.models.head.load_head`.
    stages
        Told of the reading.

    Raises
    ------
    ModelUnusable
        If a file is missing or damaged, or the family is unknown to mlx-lm.
    """
    blas.ensure()
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    try:
        model, config = load_model(folder, lazy=True, get_model_classes=classes_without_head)
        _read(model, name, stages)
        tokenizer = load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
        precision = _precision(model, config)
        if not on_gpu:
            model, precision = dense(model), "float32"
            speed_up(model)
        target = Target(model)
    except Exception as error:  # a damaged file makes the loaders raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelUnusable(
            f"{name} cannot be loaded from {folder}: {reason[:300]}; "
            "it must be a complete mlx-lm model folder"
        ) from error
    facts = ModelFacts(
        name=name,
        path=str(folder),
        family=str(config.get("model_type", "unknown")),
        parameters=_count_parameters(model),
        precision=precision,
        device="gpu" if on_gpu else "cpu",
        vocabulary=target.vocabulary,
        context_length=_context_length(config),
        end_ids=frozenset(tokenizer.eos_token_ids),
    )
    loaded_head = load_head(head, folder, name, config, target, on_gpu=on_gpu, shipped=shipped)
    return LoadedModel(facts, target, tokenizer, loaded_head)


def _read(model: Any, name: str, stages: Stages) -> None:
    """Read the weights, which were only named so far."""
    arrays: Any = tree_flatten(model.parameters(), destination={})
    with stages(sum(a.nbytes for a in arrays.values()), f"loading {Path(name).name}", "B") as tick:
        mx.async_eval(arrays)  # several are read at once
        for array in arrays.values():
            mx.eval(array)
            tick(array.nbytes)


def _precision(model: Any, config: dict[str, Any]) -> str:
    arrays: Any = tree_flatten(model.parameters(), destination={})
    kinds = {str(a.dtype).rsplit(".", 1)[-1] for a in arrays.values()}
    floats = ", ".join(sorted(k for k in kinds if "float" in k))
    bits = (config.get("quantization") or {}).get("bits")
    return f"{bits}-bit, {floats}" if bits else floats


def _count_parameters(model: Any) -> int:
    from mlx_lm.utils import get_total_parameters

    return int(get_total_parameters(model))


def _context_length(config: dict[str, Any]) -> int:
    for scope in (config, config.get("text_config") or {}):
        for key in CONTEXT_KEYS:
            if isinstance(scope.get(key), int) and scope[key] > 1:
                return int(scope[key])
    return UNBOUNDED
