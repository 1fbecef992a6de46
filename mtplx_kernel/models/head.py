"""Which head drafts for a model: its own, one beside it, one of this package's, or none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.errors import InvalidRequest, ModelUnusable
from mtplx_kernel.heads.base import Head
from mtplx_kernel.heads.checkpoint import head_files, load_native
from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.heads.distilled_file import load_distilled
from mtplx_kernel.heads.files import read_header
from mtplx_kernel.models.catalog import ModelSource
from mtplx_kernel.models.dense import dense
from mtplx_kernel.models.identity import content_digest
from mtplx_kernel.models.target import NO_STATES, Target

AUTO, NONE = "auto", "none"
DISTILLED_NAME = "head.safetensors"
SHIPPED = Path(__file__).parents[1] / "heads" / "shipped"
ALLOWED = f"give 'auto', 'none', a distilled {DISTILLED_NAME}, or a folder with a head"
WITHOUT = "; load with the head 'none' to do without it"
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
    parameters
        Its own: what it shares with the model does not count.
    nbytes
        What it holds in memory beside the model: its parameters, and of a distilled head also the
        rows of the model's output head that it copied.
    columns
        How many ids it may draft.
    identity
        Tells it from other heads by what its files hold, whatever folder it lies in: all of files
        up to 16 MiB, and of larger ones the header and the beginning of every tensor.
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


def check_choice(head: object) -> str:
    """What a caller gave as the head, as `load_head` takes it. Nothing is loaded.

    Raises
    ------
    InvalidRequest
        If it is neither text nor a path.
    ModelUnusable
        If it is a path, and nothing is there.
    """
    choice = os.fspath(head) if isinstance(head, str | os.PathLike) else None
    if not isinstance(choice, str) or not choice:
        raise InvalidRequest(f"the head must be text or a path, not {head!r}: {ALLOWED}")
    if choice not in (AUTO, NONE):
        _given(choice)
    return choice


def shipped_name(source: ModelSource) -> str | None:
    """The name under which this package may hold a head for a model; only for the catalog's own."""
    return source.name if source.origin == "catalog" else None


def load_head(
    choice: str,
    folder: Path,
    name: str,
    config: Mapping[str, Any],
    target: Target,
    *,
    on_gpu: bool,
    shipped: str | None = None,
) -> LoadedHead | None:
    """Find and load a model's head, and have the target's states kept for it.

    Parameters
    ----------
    choice
        "auto": the checkpoint's own head, else a distilled `head.safetensors` in its folder, else
        the one that this package ships for it. "none": no head. Otherwise the path of a
        distilled head or of its folder, or of a folder with a checkpoint's own head.
    shipped
        As `shipped_name` tells; None for models that are not of the catalog.

    Returns
    -------
    LoadedHead or None
        None where "auto" finds none, or the model's states cannot be read.

    Raises
    ------
    ModelUnusable
        If the head is damaged, or of another model, or was asked for and is not there, or the
        model cannot have one.
    """
    if choice == NONE or (choice == AUTO and not target.splits):
        return None
    hint = WITHOUT if choice == AUTO else ""
    with running(folder if choice == AUTO else choice, hint):
        place = _place(choice, folder, name, config, shipped)
    if place is None:
        return None
    norm = _check_model(target, place)
    with running(place, hint):
        head = _read(place, config, target, norm, on_gpu=on_gpu)
        target.tap(head.taps)
        return LoadedHead(_facts(head, place, target.vocabulary, config), head)


@contextmanager
def running(source: str | Path, hint: str = "") -> Iterator[None]:
    """Tell whatever goes wrong within, where a head is loaded or first run, as that head's.

    Parameters
    ----------
    source
        Where the head came from.
    hint
        What is added to errors that say themselves what to do.

    Raises
    ------
    ModelUnusable
        Instead of any exception.
    """
    try:
        yield
    except ModelUnusable as error:
        raise ModelUnusable(f"{error}{hint}") from error
    except Exception as error:  # a head, or a model that is given one, may fail in any way
        reason = " ".join(str(error).split())[:200]
        kind = type(error).__name__
        raise _not_to_be_run(source, f"{kind}: {reason}" if reason else kind) from error


def _not_to_be_run(source: str | Path, reason: str) -> ModelUnusable:
    return ModelUnusable(f"the head in {source} cannot be run here: {reason}{WITHOUT}")


def _given(choice: str) -> Path:
    """The file or folder that a caller named."""
    try:
        path = Path(choice).expanduser()
        if path.is_file() or path.is_dir():
            return path
    except (OSError, RuntimeError):  # a name too long for a file, or the home of nobody
        pass
    raise ModelUnusable(f"there is no head at {choice!r}: {ALLOWED}")


def _place(
    choice: str, folder: Path, name: str, config: Mapping[str, Any], shipped: str | None
) -> Path | None:
    """The distilled head's file, or the folder of a checkpoint's own head."""
    if choice != AUTO:
        given = _given(choice)
        if given.is_file() or head_files(given, config):
            return given
        if (given / DISTILLED_NAME).is_file():
            return given / DISTILLED_NAME
        raise ModelUnusable(f"{choice} holds no head for {name}: {ALLOWED}")
    if head_files(folder, config):
        return folder
    candidates = [folder / DISTILLED_NAME]
    if shipped is not None:
        candidates.append(SHIPPED / shipped / DISTILLED_NAME)
    return next((path for path in candidates if path.is_file()), None)


def _check_model(target: Target, place: Path) -> mx.array:
    """The weight of the model's final norm; ModelUnusable where no head can draft for it."""
    if not target.splits:
        raise _not_to_be_run(place, NO_STATES)
    if not hasattr(target.inner, "layers"):
        raise _not_to_be_run(place, "the model's layers were not found")
    norm = target.final_norm
    if norm is None:
        raise _not_to_be_run(place, "the model's final norm was not found")
    return norm


def _read(
    place: Path, config: Mapping[str, Any], target: Target, norm: mx.array, *, on_gpu: bool
) -> Head:
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


def _facts(head: Head, place: Path, vocabulary: int, config: Mapping[str, Any]) -> HeadFacts:
    arrays: Any = tree_flatten(head.parameters(), destination={})
    copied = head.gathered if isinstance(head, DistilledHead) else []
    files = head_files(place, config) if place.is_dir() else [place]
    columns = vocabulary if head.vocabulary is None else head.vocabulary.size
    return HeadFacts(
        family=head.family,
        source=str(place),
        parameters=sum(a.size for a in arrays.values()),
        nbytes=sum(a.nbytes for a in (*arrays.values(), *copied)),
        columns=columns,
        identity=f"{head.family}-{content_digest(files)}-{columns}",
    )
