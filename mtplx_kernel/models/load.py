"""From a folder to a model that is ready to decode. Runs on the thread that will own the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

from mtplx_kernel.caching.slots import Caches, SlotCaches, StockCaches, UnsupportedCache
from mtplx_kernel.caching.span import Span
from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.models import blas
from mtplx_kernel.models.target import Target

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
UNBOUNDED = 2**31
SELF_CHECK_IDS = (1, 5, 2, 7, 3, 6)
SELF_CHECK_COSINE = 0.98


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a loaded model, as plain data.

    Attributes
    ----------
    precision
        Type of the weights in memory, such as "float32" or "4-bit, bfloat16".
    context_length
        Most ids a request may hold.
    rollback_reason
        Why the caches cannot take tokens back; None where they can.
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
    rollback_reason: str | None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its owner thread."""

    facts: ModelFacts
    target: Target
    tokenizer: Any
    caches: Caches


def load(folder: Path, name: str) -> LoadedModel:
    """Load an mlx-lm folder.

    Parameters
    ----------
    folder
        Holds config.json, safetensors and the tokenizer.
    name
        What the user calls it.

    Raises
    ------
    ModelUnusable
        If a file is missing or damaged, or the family is unknown to mlx-lm.
    """
    blas.ensure()
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    try:
        model, config = load_model(folder)
        tokenizer = load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
        precision = _precision(model, config)
        if not on_gpu:
            model, precision = _dense(model), "float32"
        target = Target(model)
    except Exception as error:  # a damaged file makes the loaders raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelUnusable(
            f"{name} cannot be loaded from {folder}: {reason[:300]}; "
            "it must be a complete mlx-lm model folder"
        ) from error
    caches, rollback_reason = _caches(model, target)
    blas.calibrate(_decode_timer(target, caches))
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
        rollback_reason=rollback_reason,
    )
    return LoadedModel(facts, target, tokenizer, caches)


def _dense(model: Any) -> Any:
    """float32 without quantisation: on CPUs the fast BLAS multiplies nothing else."""
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    mx.clear_cache()
    return model


def _caches(model: Any, target: Target) -> tuple[Caches, str | None]:
    """Caches that can take tokens back, if this model works with them; else its own, and why."""
    try:
        caches = SlotCaches(model)
        if not _agrees(target, caches, StockCaches(model)):
            raise UnsupportedCache("its layers give other logits with caches that take tokens back")
        return SlotCaches(model), None
    except UnsupportedCache as error:
        return StockCaches(model), str(error)
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        # A family that asks more of a cache than the common interface: its own caches still serve.
        return StockCaches(
            model
        ), f"its layers need another cache ({type(error).__name__}: {error})"


def _agrees(target: Target, ragged: SlotCaches, stock: StockCaches) -> bool:
    """Feed a few ids with a draft taken back, and compare with mlx-lm's own caches."""
    ids = list(SELF_CHECK_IDS)
    expected = _feed(target, stock, 0, ids)
    _feed(target, ragged, 0, ids[:3])
    _feed(target, ragged, 3, [*ids[3:5], 0], whole=False)
    found = (
        _feed(target, ragged, 3, ids[3:]) if ragged.recurrent else _feed(target, ragged, 5, ids[5:])
    )
    norm = mx.linalg.norm(expected) * mx.linalg.norm(found)
    return bool(mx.sum(expected * found) >= SELF_CHECK_COSINE * norm)


def _feed(
    target: Target, caches: Caches, start: int, ids: list[int], whole: bool = True
) -> mx.array:
    span = Span(0, [start], [len(ids)])
    hidden = target.forward(mx.array([ids]), caches.begin(span))
    logits = target.logits(hidden[0, -1:])
    mx.eval(logits, caches.arrays)
    caches.commit([whole])
    return logits[0]


def _decode_timer(target: Target, caches: Caches) -> Callable[[], float]:
    """Seconds of one decode forward and one verify forward, from an empty cache."""

    def run() -> float:
        start = time.perf_counter()
        _feed(target, caches, 0, [1])
        if caches.rollback:
            _feed(target, caches, 0, [1, 2, 3, 4])
        return time.perf_counter() - start

    return run


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
