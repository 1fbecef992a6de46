"""Folders of Qwen checkpoints in other hands' forms, and whether their head is Qwen's formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from mtplx_kernel.heads.families import classes_without_head
from tests.heads.agreement import assert_follows
from tests.heads.oracle import qwen
from tests.heads.published import Published, Tensors, open_head

EMBEDDING = "model.language_model.embed_tokens.weight"


def follows(folder: Path, published: Published, head: Tensors) -> None:
    """Whether the folder's head is Qwen's formula on these tensors."""
    _, found = open_head(folder)
    embedding = published.base[EMBEDDING].astype(np.float64)
    output = published.base["lm_head.weight"].astype(np.float64)
    assert_follows(found, embedding, qwen.states(head), lambda y: y @ output.T)


def with_one(head: Tensors) -> Tensors:
    """Norms as converters write them."""
    return {n: a + np.float32("norm" in n) for n, a in head.items()}


def flat(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def converted(
    published: Published, folder: Path, head: Tensors, notes: dict[str, str] | None = None
) -> Path:
    """The folder as mlx-lm converts it, but with these tensors of a head kept in it."""
    raw = published.write(folder / "raw")
    model, config = load_model(raw, get_model_classes=classes_without_head)
    tensors = {n: np.array(a) for n, a in flat(model).items()}
    made = Published(config, tensors, head, {"format": "mlx"} if notes is None else notes)
    return made.write(folder / "converted")
