"""The base model as training sees it, and a new head for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import dequantize_model

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Tap
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig
from mtplx_kernel.models import blas
from mtplx_kernel.models.head import NONE
from mtplx_kernel.models.load import load
from mtplx_kernel.models.progress import Stages, untold
from mtplx_kernel.models.target import Target

LOWER_TAPS = (0.3, 0.63)
"""Where between the first and the last layer the lower states are read: what middle layers know of
the text to come is partly gone after the last."""


@dataclass(frozen=True, slots=True)
class Base:
    """A loaded base model.

    Attributes
    ----------
    folder
        Where it was loaded from.
    norm
        Weight of its final norm, shape (hidden,).
    dtype
        What it computes in.
    """

    folder: Path
    target: Target
    tokenizer: Any
    end_ids: frozenset[int]
    norm: mx.array
    dtype: mx.Dtype
    layers: int

    @property
    def hidden(self) -> int:
        """Size of its hidden states."""
        return int(self.norm.size)


def load_base(folder: Path, stages: Stages = untold) -> Base:
    """Load a model folder without quantisation: products of many rows are faster then.

    Parameters
    ----------
    folder
        Of an mlx-lm model.
    stages
        Told of the reading.

    Raises
    ------
    ModelUnusable
        If it cannot be loaded, or its hidden states cannot be read.
    """
    loaded = load(folder, folder.name, NONE, stages=stages)
    model = loaded.target.model
    if loaded.facts.device == "gpu":
        model = dequantize_model(model)
        if loaded.facts.precision.endswith("float32"):
            model.set_dtype(mx.bfloat16)
        mx.eval(model.parameters())
    target = Target(model)
    blas.calibrate(lambda: _seconds(target))
    return make_base(folder, target, loaded.tokenizer, loaded.facts.end_ids)


def _seconds(target: Target) -> float:
    """Seconds of a forward over as many tokens as training runs at once."""
    started = time.perf_counter()
    mx.eval(target.forward(mx.zeros((4, 64), mx.int32), None))
    return time.perf_counter() - started


def make_base(folder: Path, target: Target, tokenizer: Any, end_ids: frozenset[int]) -> Base:
    """What training needs to know of a target.

    Raises
    ------
    ModelUnusable
        If its hidden states cannot be read.
    """
    norm = target.final_norm
    if norm is None:
        raise ModelUnusable(
            f"{folder.name} has no final norm that is known; it cannot be distilled"
        )
    states = target.forward(mx.array([[0]]), None)
    layers = len(target.inner.layers)
    return Base(folder, target, tokenizer, end_ids, norm, states.dtype, layers)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its small operations fused, on a GPU.

    On a CPU MLX would call a C++ compiler for each fused kernel, which takes longer than it saves.
    """
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    fused: Callable[..., Any] = mx.compile(function) if on_gpu else function
    return fused


def design(base: Base) -> HeadConfig:
    """Shapes of a head like one of the base's own layers, where it is of a common kind."""
    args = getattr(base.target.inner, "args", None) or getattr(base.target.model, "args", None)

    def known(name: str, otherwise: Any) -> Any:
        value = getattr(args, name, None)
        return otherwise if value is None else value

    hidden = base.hidden
    heads = int(known("num_attention_heads", max(1, hidden // 64)))
    head_dim = int(known("head_dim", hidden // heads))
    if head_dim % 2:
        heads, head_dim = max(1, hidden // 64), 64
    kv_heads = int(known("num_key_value_heads", heads))
    return HeadConfig(
        hidden=hidden,
        vocabulary=base.target.vocabulary,
        layers=base.layers,
        taps=_taps(base.layers),
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        head_dim=head_dim,
        intermediate=min(int(known("intermediate_size", 3 * hidden)), 4 * hidden),
        rope_base=float(known("rope_theta", 10000.0)),
        eps=float(known("rms_norm_eps", 1e-5)),
    )


def _taps(layers: int) -> tuple[Tap, ...]:
    lower = sorted({round(share * layers) for share in LOWER_TAPS} & set(range(layers)))
    return (*lower, "final")


def new_head(base: Base, vocabulary: mx.array, seed: int) -> DistilledHead:
    """A head whose block is the base's last layer, as far as the shapes are the same.

    Parameters
    ----------
    base
        The model.
    vocabulary
        The drafted ids, int32 of shape (columns,).
    seed
        Of the parts that no layer is copied to.
    """
    config = design(base)
    mx.random.seed(seed)
    head = DistilledHead(config, base.target.shared, vocabulary)
    hidden, taps = config.hidden, len(config.taps)
    # At first the fusion is the last state, and the block reads state and token half each.
    nothing = mx.zeros((hidden, hidden * (taps - 1)))
    head.fuse.weight = mx.concatenate([nothing, mx.eye(hidden)], axis=1)
    head.fc.weight = mx.concatenate([mx.eye(hidden), mx.eye(hidden)], axis=1)
    _copy(base.target.inner.layers[-1], head)
    head.set_dtype(mx.float32)
    mx.eval(head.parameters())
    return head


def _copy(layer: Any, head: DistilledHead) -> None:
    for path in (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "input_layernorm",
        "post_attention_layernorm",
    ):
        source, into = layer, head
        for name in path.split("."):
            source, into = getattr(source, name, None), getattr(into, name)
        weight = getattr(source, "weight", None)
        if weight is not None and weight.shape == into.weight.shape:
            into.weight = weight.astype(mx.float32)
