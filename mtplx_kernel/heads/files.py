"""What the safetensors files of a model folder hold, read from their headers alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from mtplx_kernel.errors import ModelUnusable

Shape = tuple[int, ...]
Role = Literal["model", "head", "other"]


@dataclass(frozen=True, slots=True)
class TensorFile:
    """One file's header.

    Attributes
    ----------
    path
        The file.
    metadata
        What its writer noted.
    shapes
        For each tensor, by its name in the file.
    role
        "model": one that mlx-lm reads. "head": by its name or place one that holds an MTP head
        alone. "other": any other, which may hold a head as well.
    """

    path: Path
    metadata: Mapping[str, str]
    shapes: Mapping[str, Shape]
    role: Role

    def load(self) -> dict[str, mx.array]:
        """The tensors, read when they are used.

        Raises
        ------
        ModelUnusable
            If MLX cannot read the file.
        """
        try:
            return dict(mx.load(str(self.path)))  # type: ignore[arg-type]
        except (RuntimeError, ValueError) as err:
            reason = " ".join(str(err).split())[:200]
            raise ModelUnusable(
                f"{self.path} cannot be read: {reason}; it must hold types that MLX knows"
            ) from err


def tensor_files(folder: Path) -> list[TensorFile]:
    """Headers of the folder's files and of those in its `mtp` folder, in order of their paths.

    Raises
    ------
    ModelUnusable
        If one of the model's or of a head's is damaged or cut short.
    """
    alone = _holds_a_head_alone(folder)
    paths = [(path, _role(path, alone)) for path in sorted(folder.glob("*.safetensors"))]
    below: list[tuple[Path, Role]] = [(p, "head") for p in sorted(folder.glob("mtp/*.safetensors"))]
    files = [_header_of_any(path, role) for path, role in paths + below]
    return [file for file in files if file is not None]


def _holds_a_head_alone(folder: Path) -> bool:
    """Whether the folder's own config is that of a head, such as `qwen3_5_mtp`."""
    try:
        config = json.loads((folder / "config.json").read_text())
        return str(config.get("model_type")).endswith("_mtp")
    except (OSError, ValueError, AttributeError):
        return False  # a folder of a head may have no config; a model's is read by mlx-lm


def _role(path: Path, alone: bool) -> Role:
    if alone:
        return "head"
    if path.name.startswith("model"):
        return "model"
    return "head" if "mtp" in path.name.lower() else "other"


def _header_of_any(path: Path, role: Role) -> TensorFile | None:
    try:
        return read_header(path, role)
    except ModelUnusable:
        if role != "other":
            raise
        return None  # of another purpose: what it held is nothing to a head


def read_header(path: Path, role: Role = "other") -> TensorFile:
    """Read a file's header.

    Parameters
    ----------
    path
        A safetensors file.
    role
        What it is to a head.

    Raises
    ------
    ModelUnusable
        If it is damaged or cut short.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            size = path.stat().st_size
            if length > size - 8:
                raise ValueError("it is cut short")
            header: dict[str, Any] = json.loads(file.read(length))
        metadata = header.pop("__metadata__", None) or {}
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as err:
        raise _damaged(path, str(err)) from err
    if size < 8 + length + end:
        raise _damaged(path, "it is cut short")
    return TensorFile(path, metadata, shapes, role)


def missing_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Tensors that an index promises in files that are not there, with the file's name.

    Only indexes of safetensors count: others speak of files that are not read.

    Raises
    ------
    ModelUnusable
        If an index is damaged.
    """
    for path in sorted(folder.glob("*.safetensors.index.json")):
        try:
            places: dict[str, str] = dict(json.loads(path.read_text())["weight_map"])
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise _damaged(path, str(err)) from err
        for name, file in places.items():
            if not (folder / file).exists():
                yield name, file


def plain(name: str) -> str:
    """A tensor's name as in a text model: `language_model.` is left out wherever it stands.

    Examples
    --------
    >>> plain("model.language_model.layers.0.mlp.gate.weight")
    'model.layers.0.mlp.gate.weight'
    >>> plain("language_model.mtp.fc.weight")
    'mtp.fc.weight'
    """
    for prefix, instead in (
        ("model.language_model.", "model."),
        ("language_model.", ""),
    ):
        if name.startswith(prefix):
            return instead + name[len(prefix) :]
    return name


def _damaged(path: Path, reason: str) -> ModelUnusable:
    reason = " ".join(reason.split())[:200] or "it cannot be read"
    return ModelUnusable(f"{path} is damaged: {reason}; fetch it again")
