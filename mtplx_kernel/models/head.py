"""Which head drafts for a model: its own, one beside it, one of this package's, or none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Head
from mtplx_kernel.heads.checkpoint import head_files, load_native
from mtplx_kernel.heads.distilled import load_distilled
from mtplx_kernel.heads.files import read_header
from mtplx_kernel.models.dense import dense
from mtplx_kernel.models.target import Target

AUTO, NONE = "auto", "none"
DISTILLED_NAME = "head.safetensors"
SHIPPED = Path(__file__).parents[1] / "heads" / "shipped"
CPU_COLUMNS = 8192
"""Draft vocabulary on a CPU: more of it costs a draft more time than it is right more often."""


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What is known of a loaded head, as plain data.

    Attributes
    ----------
    family
        Such as "qwen3_next" or "distilled".
    source
        The file or folder that it came from.
    parameters, nbytes
        Its own: what it shares with the model does not count.
    columns
        How many ids it may draft.
    identity
        Tells it from other heads, whatever folder it lies in.
    """

    family: str
    source: str
    parameters: int
    nbytes: int
    columns: int
    identity: str


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head on its owner thread."""

    facts: HeadFacts
    head: Head


def load_head(
    choice: str, folder: Path, name: str, config: Mapping[str, Any], target: Target, *, on_gpu: bool
) -> LoadedHead | None:
    """Find and load a model's head, and have the target's states kept for it.

    Parameters
    ----------
    choice
        "auto": the checkpoint's own head, else a distilled `head.safetensors` in its folder, else
        the one that this package ships for `name`. "none": no head. Otherwise the path of a
        distilled head or of its folder, or of a folder with a checkpoint's own head.

    Returns
    -------
    LoadedHead or None
        None where "auto" finds none, or the model's states cannot be read.

    Raises
    ------
    ModelUnusable
        If the head is damaged, or of another model, or was asked for and is not there.
    """
    if choice == NONE or (choice == AUTO and not target.splits):
        return None
    place = None
    try:
        place = _place(choice, folder, name, config)
        if place is None:
            return None
        head = _read(place, config, target, on_gpu=on_gpu)
        target.tap(head.taps)
    except ModelUnusable as error:
        hint = "" if choice != AUTO else "; load with the head 'none' to do without it"
        raise ModelUnusable(f"{error}{hint}") from error
    except ValueError as error:
        raise ModelUnusable(f"the head in {place} does not fit {name}: {error}") from error
    return LoadedHead(_facts(head, place, target.vocabulary, folder, config), head)


def _place(choice: str, folder: Path, name: str, config: Mapping[str, Any]) -> Path | None:
    """The distilled head's file, or the folder of a checkpoint's own head."""
    if choice != AUTO:
        given = Path(choice).expanduser()
        if given.is_file():
            return given
        if not given.is_dir():
            _missing(f"there is no head at {choice!r}")
        if head_files(given, config):
            return given
        if (given / DISTILLED_NAME).is_file():
            return given / DISTILLED_NAME
        _missing(f"{choice} holds no head for {name}")
    if head_files(folder, config):
        return folder
    candidates = (folder / DISTILLED_NAME, SHIPPED / name / DISTILLED_NAME)
    return next((path for path in candidates if path.is_file()), None)


def _missing(problem: str) -> NoReturn:
    raise ModelUnusable(
        f"{problem}: give 'auto', 'none', a distilled {DISTILLED_NAME}, or a folder with a head"
    )


def _read(place: Path, config: Mapping[str, Any], target: Target, *, on_gpu: bool) -> Head:
    norm = target.final_norm
    if norm is None:
        raise ModelUnusable("the model's final norm was not found, so its head cannot be checked")
    if place.is_dir():
        native = load_native(
            place,
            config,
            shared=target.shared,
            hidden=norm.shape[0],
            vocabulary=target.vocabulary,
        )
        assert native is not None, place
        return native if on_gpu else cast(Head, dense(native))
    return load_distilled(
        place,
        shared=target.shared,
        base_norm=norm,
        hidden=norm.shape[0],
        vocabulary=target.vocabulary,
        layers=len(target.inner.layers),
        columns=None if on_gpu else _cpu_columns(place),
        dtype=norm.dtype if on_gpu else mx.float32,
    )


def _cpu_columns(place: Path) -> int | None:
    listed = read_header(place).shapes.get("vocabulary")
    return min(CPU_COLUMNS, listed[0]) if listed else None


def _facts(
    head: Head, place: Path, vocabulary: int, folder: Path, config: Mapping[str, Any]
) -> HeadFacts:
    arrays: Any = tree_flatten(head.parameters(), destination={})
    files = head_files(place, config) if place.is_dir() else [place]
    stamp = ";".join(f"{file.name} {file.stat().st_size}" for file in files)
    columns = vocabulary if head.vocabulary is None else head.vocabulary.size
    digest = hashlib.sha256(f"{stamp};{columns}".encode()).hexdigest()[:16]
    return HeadFacts(
        family=head.family,
        source=str(place),
        parameters=sum(a.size for a in arrays.values()),
        nbytes=sum(a.nbytes for a in arrays.values()),
        columns=columns,
        identity=f"{head.family}-{digest}",
    )
