"""Finding a checkpoint's head by its tensors, reading it, and writing one that was converted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.centred import is_norm, lacks_one
from mtplx_kernel.heads.chained import ChainedHead, build
from mtplx_kernel.heads.dequantise import without_fp8
from mtplx_kernel.heads.families import family_of, text_config
from mtplx_kernel.heads.files import TensorFile, missing_files, plain, tensor_files
from mtplx_kernel.heads.fit import fill
from mtplx_kernel.heads.native import Family, NativeHead, Weights
from mtplx_kernel.heads.sharing import share_equal_ends

FORMAT = "mtplx_kernel-head"
"""Of all files of heads that this package writes; `family` in the metadata tells them apart."""
VERSION = "1"
DISTILLED = "distilled"
CONVERTED_NAME = "mtp.safetensors"


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that holds tensors of the head.

    Attributes
    ----------
    names
        From the names in the file to those that the family knows.
    bare
        Whether the file leaves the family's prefix out.
    converted
        Whether it holds `NativeHead`'s own parameters.
    """

    file: TensorFile
    names: Mapping[str, str]
    bare: bool = False
    converted: bool = False


def head_files(folder: Path, config: Mapping[str, Any]) -> list[Path]:
    """The files that the head of a model folder is read from; none where it has no head.

    Reads headers only. A sidecar file (any name that does not begin with "model", or one in a
    folder named mtp) is preferred to tensors among the model's own, and a sidecar that this
    package wrote to any other. A folder may also hold a head alone.

    Raises
    ------
    ModelUnusable
        If a file of the folder is damaged, or an index promises tensors of a head in a file that
        is not there.
    """
    family = family_of(config)
    if family is None:
        return []
    found = _sources(folder, tensor_files(folder), family, text_config(config))
    return [source.file.path for source in found]


def holds_head(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a model folder holds tensors of a head that can be run."""
    return bool(head_files(folder, config))


def load_native(
    folder: Path,
    config: Mapping[str, Any],
    *,
    shared: Shared,
    hidden: int,
    vocabulary: int,
    lazy: bool = False,
) -> NativeHead | ChainedHead | None:
    """Load the head that a model folder holds.

    Parameters
    ----------
    folder
        An mlx-lm or Hugging Face model folder.
    config
        Its config.json.
    shared
        What the head borrows from the target.
    hidden
        Size of the target's hidden states.
    vocabulary
        How many ids the target's logits cover.
    lazy
        Leave the tensors in the files until they are used, but for the norms, and for ends that
        have to be compared with the target's.

    Returns
    -------
    NativeHead, ChainedHead or None
        None where no tensor of a head is there, whatever the config says. Its arrays have the
        precision of the files; quantised tensors become quantised modules. An embedding or output
        head that only repeats the target's is dropped.

    Raises
    ------
    ModelUnusable
        If tensors are missing, unknown, of another shape than the model needs, or damaged, an
        index promises some in a file that is not there, or a norm is not finite.
    """
    family = family_of(config)
    if family is None:
        return None
    text = text_config(config)
    files = tensor_files(folder)
    sources = _sources(folder, files, family, text)
    if not sources:
        return None
    what = f"the {family.name} head in {', '.join(s.file.path.name for s in sources)}"
    try:
        weights = _weights(sources, files, family, text)
        head = build(family, text, hidden, shared, weights, vocabulary)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as err:
        reason = " ".join(f"{type(err).__name__} {err}".split())[:200]
        raise ModelUnusable(
            f"{what} does not go with the model's config: {reason}; it must be a head of this model"
        ) from err
    fill(head, weights, what, lazy=lazy)
    for one in head.heads if isinstance(head, ChainedHead) else [head]:
        share_equal_ends(one, shared)
    return head


def save_native(head: NativeHead | ChainedHead, path: Path) -> None:
    """Write a head's own parameters, as they are, for `load_native` to find beside a model.

    Parameters
    ----------
    head
        Quantised modules stay quantised.
    path
        Commonly `CONVERTED_NAME` in the model's folder; its name must not begin with "model",
        which mlx-lm would read.
    """
    if path.name.startswith("model"):
        raise ValueError(f"{path.name} would be read as part of the model; try {CONVERTED_NAME}")
    parameters: Any = tree_flatten(head.parameters(), destination={})
    notes = {"format": FORMAT, "version": VERSION, "family": head.family}
    mx.save_safetensors(str(path), parameters, notes)


def _sources(
    folder: Path, files: list[TensorFile], family: Family, config: Mapping[str, Any]
) -> list[_Source]:
    converted = [_own(file) for file in files if _is_native(file)]
    if converted:
        return converted[:1]
    published = [file for file in files if file.metadata.get("format") != FORMAT]
    found = [source for file in published if (source := _published(file, family, config))]
    sidecars = [source for source in found if source.file.role != "model"]
    if not sidecars:
        _refuse_absent_files(folder, files, family, config)
    return sidecars or found


def _is_native(file: TensorFile) -> bool:
    """Whether `save_native` wrote it; a distilled head is written in the same format."""
    family = file.metadata.get("family")
    return file.metadata.get("format") == FORMAT and family not in (None, DISTILLED)


def _own(file: TensorFile) -> _Source:
    return _Source(file, {name: name for name in file.shapes}, converted=True)


def _published(file: TensorFile, family: Family, config: Mapping[str, Any]) -> _Source | None:
    names = {name: plain(name) for name in file.shapes if family.owns(plain(name), config)}
    if names:
        return _Source(file, names)
    if family.stripped is None or file.role != "head":
        return None
    bare = {name: family.stripped + plain(name) for name in file.shapes}
    return _Source(file, bare, bare=True) if bare else None


def _refuse_absent_files(
    folder: Path, files: list[TensorFile], family: Family, config: Mapping[str, Any]
) -> None:
    """An index may be older than the files: what they hold under another name is not missing."""
    here = {plain(name) for file in files for name in file.shapes}
    for name, absent in missing_files(folder):
        if family.owns(plain(name), config) and plain(name) not in here:
            raise ModelUnusable(
                f"{folder} has a head whose tensors are in {absent}, which is missing; fetch it too"
            )


def _weights(
    sources: list[_Source], files: list[TensorFile], family: Family, config: Mapping[str, Any]
) -> Weights:
    raw: Weights = {}
    for source in sources:
        arrays = source.file.load()
        raw |= {new: arrays[old] for old, new in source.names.items()}
    if sources[0].converted:
        _refuse_other_family(sources[0].file, family)
        return raw
    weights = family.read(without_fp8(raw, config), config)
    if family.original is not None and _zero_centred(sources, files, weights, family, config):
        weights = {n: a + 1.0 if is_norm(n, a) else a for n, a in weights.items()}
    return weights


def _refuse_other_family(file: TensorFile, family: Family) -> None:
    if file.metadata.get("family") != family.name or file.metadata.get("version") != VERSION:
        raise ModelUnusable(
            f"{file.path} holds a head of family {file.metadata.get('family')}, version "
            f"{file.metadata.get('version')}; this model takes {family.name}, version {VERSION}"
        )


def _zero_centred(
    sources: list[_Source],
    files: list[TensorFile],
    weights: Weights,
    family: Family,
    config: Mapping[str, Any],
) -> bool:
    """Whether the head's norms are still in the published form, which lacks 1.

    A norm that is negative on average does: as a gain it would turn the states around. Else the
    writer of the files tells: "pt" stands for the published tensors, "mlx" for mlx-lm's. Where
    none is noted, a sidecar is as published unless it leaves the family's prefix out, as converters
    do, and for the model's own tensors the rule is that of mlx-lm's `sanitize`.
    """
    assert family.original is not None
    if lacks_one(weights):
        return True
    writers = {source.file.metadata.get("format") for source in sources}
    if writers in ({"pt"}, {"mlx"}):
        return writers == {"pt"}
    if sources[0].file.role != "model":
        return not sources[0].bare
    shapes = {plain(n): s for f in files if f.role == "model" for n, s in f.shapes.items()}
    return family.original(shapes, config)
