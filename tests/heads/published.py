"""Tiny random checkpoints as their makers publish them, and one way to open them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from numpy.typing import NDArray

from mtplx_kernel.heads.checkpoint import load_native
from mtplx_kernel.heads.families import classes_without_head
from mtplx_kernel.heads.native import NativeHead
from mtplx_kernel.models.target import Target

Array = NDArray[Any]
Tensors = dict[str, Array]

HIDDEN, WIDTH, VOCABULARY, EXPERTS = 64, 96, 130, 4
HEADS, KV_HEADS, DIM = 4, 2, 16
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Published:
    """A checkpoint before it is written: the target's and the head's tensors, by their names."""

    config: dict[str, Any]
    base: Tensors
    head: Tensors
    metadata: dict[str, str] = field(default_factory=lambda: {"format": "pt"})

    def write(self, folder: Path, *, sidecar: str | None = None) -> Path:
        """Write the folder; the head beside the target in one file or in one of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if sidecar is None:
            save(folder / "model.safetensors", self.base | self.head, self.metadata)
        else:
            (folder / sidecar).parent.mkdir(exist_ok=True)
            save(folder / "model.safetensors", self.base, self.metadata)
            save(folder / sidecar, self.head, self.metadata)
        return folder


def save(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    mx.save_safetensors(str(path), {n: mx.array(a) for n, a in tensors.items()}, metadata)


def base(config: dict[str, Any], name: Callable[[Tensors], Tensors]) -> Tensors:
    """A random target, with its tensors named as published by `name`."""
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(3)
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    parameters: Any = tree_flatten(model.parameters())
    return name({n: np.array(a) for n, a in parameters})


def unstacked(tensors: Tensors, switch: str = ".switch_mlp.", apart: str = ".experts.") -> Tensors:
    """Experts one by one."""
    parted: Tensors = {}
    for name, array in tensors.items():
        if switch in name:
            before, after = name.split(switch)
            parted |= {f"{before}{apart}{e}.{after}": a for e, a in enumerate(array)}
        else:
            parted[name] = array
    return parted


class Shapes:
    """Collects a head's random tensors under their published names."""

    def __init__(self, seed: int = 5) -> None:
        self._random = np.random.default_rng(seed)
        self.tensors: Tensors = {}

    def matrix(self, name: str, *shape: int) -> None:
        scale = 1.5 / np.sqrt(shape[-1])
        self.tensors[f"{name}.weight"] = self._normal(shape) * np.float32(scale)

    def bias(self, name: str, size: int, end: str = ".bias") -> None:
        self.tensors[f"{name}{end}"] = self._normal((size,)) * np.float32(0.5)

    def norms(self, names: Iterable[str], size: int = HIDDEN, centre: float = 1.0) -> None:
        for name in names:
            spread = self._normal((size,)) * np.float32(0.2)
            self.tensors[f"{name}.weight"] = spread + np.float32(centre)

    def mlp(self, name: str, width: int = WIDTH) -> None:
        self.matrix(f"{name}.gate_proj", width, HIDDEN)
        self.matrix(f"{name}.up_proj", width, HIDDEN)
        self.matrix(f"{name}.down_proj", HIDDEN, width)

    def attention(self, name: str, *, queries: int = HEADS * DIM, bias: bool = False) -> None:
        for part, rows in (("q", queries), ("k", KV_HEADS * DIM), ("v", KV_HEADS * DIM)):
            self.matrix(f"{name}.{part}_proj", rows, HIDDEN)
            if bias:
                self.bias(f"{name}.{part}_proj", rows)
        self.matrix(f"{name}.o_proj", HIDDEN, HEADS * DIM)

    def _normal(self, shape: tuple[int, ...]) -> Array:
        return self._random.standard_normal(shape).astype(np.float32)


def open_head(folder: Path) -> tuple[Target, NativeHead]:
    """The folder's target and head, as a user's load makes them."""
    model, config = load_model(folder, get_model_classes=classes_without_head)
    target = Target(model)
    head = load_native(
        folder,
        config,
        shared=target.shared,
        hidden=HIDDEN,
        vocabulary=target.vocabulary,
    )
    assert head is not None
    return target, head
