"""The file of a distilled head: written, read, and recognised as one for its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig

FORMAT = "mtplx_kernel-head"
DENSE, PACKED = "1", "2"
"""Versions of the file: all in bfloat16, or the feed-forward layer packed."""
GROUP, BITS = 64, 8
MOST_NORM_ERROR = 0.05
"""A base of another precision differs by less in its final norm; another model by far more."""


def save_distilled(path: Path, head: DistilledHead, base_norm: mx.array) -> None:
    """Write a head, with what `load_distilled` recognises its target by.

    It is written in bfloat16, but for the feed-forward layer, two thirds of it: that takes 8 bits
    a weight, where its sizes can be packed.
    """
    parameters: Any = tree_flatten(head.parameters(), destination={})
    tensors: dict[str, mx.array] = {}
    version = DENSE
    for name, array in parameters.items():
        tensors[name] = array.astype(mx.bfloat16)
        if name.startswith("mlp.") and array.shape[-1] % GROUP == 0:
            version = PACKED
            packed: Any = mx.quantize(array.astype(mx.float32), GROUP, BITS)
            tensors |= dict(zip(_packed(name), packed, strict=True))
    tensors["vocabulary"] = head.vocabulary.astype(mx.int32)
    tensors["base.norm"] = base_norm.astype(mx.float32)
    metadata = {"format": FORMAT, "version": version, "family": head.family}
    metadata["config"] = head.config.to_json()
    mx.save_safetensors(str(path), tensors, metadata)


def load_distilled(
    path: Path,
    *,
    shared: Shared,
    base_norm: mx.array,
    hidden: int,
    vocabulary: int,
    layers: int,
    columns: int | None = None,
    dtype: mx.Dtype = mx.float32,
) -> DistilledHead:
    """Load a head for a target.

    Parameters
    ----------
    path
        What `save_distilled` wrote.
    shared
        The target's embedding and output head.
    base_norm
        The target's final norm weight, shape (hidden,).
    hidden, vocabulary, layers
        The target's sizes.
    columns
        Draft only the so many most frequent ids; None for all that the file lists.
    dtype
        Type of the parameters.

    Raises
    ------
    ModelUnusable
        If it is no such file, is damaged, or belongs to another model.
    """
    tensors, config = _read(path)
    ids = tensors.pop("vocabulary", None)
    norm = tensors.pop("base.norm", None)
    found = (config.hidden, config.vocabulary, config.layers)
    if found != (hidden, vocabulary, layers):
        raise ModelUnusable(
            f"{path.name} is a head for a model of hidden size, vocabulary and layers {found}, "
            f"and this one has {(hidden, vocabulary, layers)}; distil one for this model"
        )
    if norm is None or norm.shape != base_norm.shape or not _alike(norm, base_norm):
        raise ModelUnusable(
            f"{path.name} is a head for another model: the final norms differ; distil one for this"
        )
    if ids is None or not _drafted(ids, vocabulary):
        raise ModelUnusable(
            f"{path.name} is damaged: its draft vocabulary is missing or not valid; "
            f"it must be distinct whole ids from 0 to {vocabulary - 1}"
        )
    if columns is not None and not 0 < columns <= ids.size:
        raise ModelUnusable(
            f"{path.name} drafts {ids.size} ids, not {columns}; ask for 1 to {ids.size}"
        )
    try:
        head = DistilledHead(config, shared, ids.astype(mx.int32)[:columns])
        head.load_weights([(name, a.astype(dtype)) for name, a in _dense(tensors).items()])
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ModelUnusable(
            f"{path.name} is damaged: {' '.join(str(error).split())[:200]}; distil or copy it anew"
        ) from error
    mx.eval(head.parameters())
    return head


def _packed(name: str) -> tuple[str, str, str]:
    """Names of the arrays that a matrix is packed into: its own, of its scales and its biases."""
    stem = name.removesuffix(".weight")
    return name, f"{stem}.scales", f"{stem}.biases"


def _dense(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The tensors of a file, the packed ones as they were but for rounding."""
    made = {}
    for name, array in tensors.items():
        if name.endswith((".scales", ".biases")):
            continue
        scales, biases = (tensors.get(other) for other in _packed(name)[1:])
        whole = array if scales is None else mx.dequantize(array, scales, biases, GROUP, BITS)
        made[name] = whole
    return made


def _read(path: Path) -> tuple[dict[str, mx.array], HeadConfig]:
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        tensors, metadata = loaded
        mx.eval(tensors)
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelUnusable(
            f"{path} cannot be read: {' '.join(str(error).split())[:200]}; it must be a "
            "head.safetensors that distillation wrote"
        ) from error
    # The first files that were written name no family; a checkpoint's own head names its own.
    kind = (metadata.get("format"), metadata.get("family", DistilledHead.family))
    if kind != (FORMAT, DistilledHead.family):
        raise ModelUnusable(
            f"{path.name} is not a distilled head; name a head.safetensors of one, or the folder "
            "of a checkpoint with its own"
        )
    if metadata.get("version") not in (DENSE, PACKED):
        raise ModelUnusable(
            f"{path.name} has format version {metadata.get('version')}, and only {DENSE} and "
            f"{PACKED} are known; update mtplx-kernel or distil the head anew"
        )
    try:
        return tensors, HeadConfig.from_json(metadata["config"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelUnusable(
            f"{path.name} is damaged: its config cannot be read "
            f"({' '.join(str(error).split())[:200]}); distil or copy it anew"
        ) from error


def _drafted(ids: mx.array, vocabulary: int) -> bool:
    """Whether these can be a head's ids: rejection sampling needs each to have one column."""
    if ids.ndim != 1 or ids.size == 0 or not mx.issubdtype(ids.dtype, mx.integer):
        return False
    listed: Any = ids.tolist()
    return min(listed) >= 0 and max(listed) < vocabulary and len(set(listed)) == len(listed)


def _alike(a: mx.array, b: mx.array) -> bool:
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    error = mx.linalg.norm(a - b) / (mx.linalg.norm(b) + 1e-12)
    return bool(error <= MOST_NORM_ERROR)  # false where it is not a number
