"""Convert a model into an mlx-lm folder, quantised or not, and keep its MTP head in a sidecar."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtplx_kernel.errors import ModelUnusable, MTPLXError
from mtplx_kernel.models.catalog import ModelSource, resolve
from mtplx_kernel.models.quantise import (
    WHOLE_HEAD,
    check_options,
    forget_fp8,
    quantise_head,
    quantise_target,
)
from mtplx_kernel.models.writing import (
    check_free,
    check_room,
    companions,
    copy_files,
    scratch,
    write_card,
    write_shards,
)

if TYPE_CHECKING:
    from mtplx_kernel.heads.chained import ChainedHead
    from mtplx_kernel.heads.native import NativeHead

SIDECAR = "mtp.safetensors"
DISTILLED = "head.safetensors"


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion made.

    Attributes
    ----------
    source
        As it was asked for.
    destination
        The folder that was written.
    bits, group_size
        Of the target's quantised layers; None where this conversion quantised nothing.
    layers_left
        How many of the target's layers the group size does not divide: they stay whole, as in
        mlx-lm.
    head_family
        "qwen3_next", for example; None where the checkpoint holds no head.
    head_bits
        Of the head's quantised layers, the sensitive ones apart; None where it was not quantised.
    head_parameters
        How many numbers the head holds, before quantisation.
    distilled
        Whether a distilled head came along.
    bytes_before, bytes_after
        Size of the weights, the head's included.
    seconds
        How long it took, a download included.
    """

    source: str
    destination: Path
    bits: int | None
    group_size: int | None
    layers_left: int
    head_family: str | None
    head_bits: int | None
    head_parameters: int
    distilled: bool
    bytes_before: int
    bytes_after: int
    seconds: float

    def __str__(self) -> str:
        kept = f"; {self.layers_left} layers left whole" if self.layers_left else ""
        lines = [
            f"{self.source} → {self.destination}",
            f"model: {_precision(self.bits, self.group_size)}{kept}",
            f"head: {self._head()}{' + a distilled head' if self.distilled else ''}",
            f"weights: {self.bytes_before / 1e6:,.1f} MB → {self.bytes_after / 1e6:,.1f} MB"
            f" in {self.seconds:.1f} s",
        ]
        return "\n".join(lines)

    def _head(self) -> str:
        if self.head_family is None:
            return "the checkpoint holds none"
        precision = "precision kept" if self.head_bits is None else f"{self.head_bits} bits"
        return f"{self.head_family}, {self.head_parameters:,} parameters, {precision}, in {SIDECAR}"


def convert(
    source: str,
    destination: Path,
    *,
    bits: int | None,
    group_size: int = 64,
    head_bits: int | None = None,
    progress: bool = True,
) -> ConversionReport:
    """Write an mlx-lm folder of a model, with its MTP head in `mtp.safetensors`.

    mlx-lm reads the folder as one of its own and does not see the head; this package reads both.

    Parameters
    ----------
    source
        A catalog name, a local folder (as published, or mlx-lm's), or a hub id.
    destination
        The folder to make. It must not exist, or be empty.
    bits
        Of the target's layers: 4, 6 or 8; None keeps the precision (fp8 becomes bfloat16).
    group_size
        How many weights share a scale: 32, 64 or 128.
    head_bits
        Of the head's layers: 4, 6 or 8; 16 keeps their precision; None is the same as `bits`. Its
        fusing projection, routers, own embedding and own output have at least 8; its norms and
        router biases keep their precision.
    progress
        Whether to draw a progress bar.

    Raises
    ------
    InvalidRequest
        If an option is not allowed or the destination is not empty; nothing was done.
    ModelNotFound, ModelUnusable
        If the source cannot be read, is quantised already and `bits` are asked for, does not fit
        on the disk, or could not be written. The destination is as it was.
    """
    started = time.perf_counter()
    check_options(bits, group_size, head_bits)
    destination = Path(os.path.abspath(destination.expanduser()))
    try:
        check_free(destination)
        found = resolve(source, progress=progress)
        plan = _plan(found, bits, group_size, bits if head_bits is None else head_bits)
        with scratch(destination) as folder:
            check_room(folder, plan.nbytes)
            _write(plan, folder, progress)
            after = _weight_bytes(folder)
    except (OSError, RuntimeError) as err:  # MLX reports a full disk as a RuntimeError.
        raise ModelUnusable(
            f"{destination} could not be made: {_line(err)}; nothing of it was kept, check the room"
            " on that disk and the source, or choose another folder"
        ) from err
    return ConversionReport(
        source=source,
        destination=destination,
        bits=bits,
        group_size=None if bits is None else group_size,
        layers_left=plan.layers_left,
        head_family=None if plan.head is None else plan.head.family,
        head_bits=None if plan.head is None else plan.head_bits,
        head_parameters=plan.head_parameters,
        distilled=(found.path / DISTILLED).is_file(),
        bytes_before=_weight_bytes(found.path),
        bytes_after=after,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model as it is to be written, of which nothing but headers is read yet."""

    found: ModelSource
    model: Any
    config: dict[str, Any]
    layers_left: int
    head: NativeHead | ChainedHead | None
    head_bits: int | None
    head_parameters: int

    @property
    def nbytes(self) -> int:
        """How much will be written."""
        arrays = [*_arrays(self.model).values(), *_arrays(self.head).values()]
        copied = [path.stat().st_size for path in _copied(self.found.path)]
        return sum(int(a.nbytes) for a in arrays) + sum(copied)


def _plan(found: ModelSource, bits: int | None, group_size: int, head_bits: int | None) -> _Plan:
    try:
        model, config = _load_target(found.path)
        head = _load_head(found.path, model, config)
    except MTPLXError:
        raise
    except Exception as err:  # a damaged file makes the loaders raise anything
        raise ModelUnusable(
            f"{found.name} cannot be converted: {_line(err)}; it must be a complete model folder"
            " of a family that mlx-lm knows"
        ) from err
    parameters = 0 if head is None else _count(head)
    if head_bits == WHOLE_HEAD:
        head_bits = None
    left = 0
    if head is not None and head_bits is not None:
        quantise_head(head, model, head_bits, group_size, found.name)
    if bits is None:
        forget_fp8(model, config)
    else:
        config, left = quantise_target(model, config, bits, group_size, found.name)
    return _Plan(found, model, config, left, head, head_bits, parameters)


def _load_target(folder: Path) -> tuple[Any, dict[str, Any]]:
    from mlx_lm.utils import load_model

    from mtplx_kernel.heads.families import classes_without_head

    model, config = load_model(folder, lazy=True, get_model_classes=classes_without_head)
    return model, config


def _load_head(folder: Path, model: Any, config: dict[str, Any]) -> NativeHead | ChainedHead | None:
    from mtplx_kernel.heads.checkpoint import load_native
    from mtplx_kernel.heads.families import family_of, text_config
    from mtplx_kernel.models.target import ends

    if family_of(config) is None:
        return None
    text = text_config(config)
    return load_native(
        folder,
        config,
        shared=ends(model, _unused),
        hidden=text["hidden_size"],
        vocabulary=text["vocab_size"],
        lazy=True,
    )


def _write(plan: _Plan, folder: Path, progress: bool) -> None:
    """Write the folder, its config last: without one no folder is taken for a model."""
    from mlx_lm.utils import load_model, save_config

    keep_vision = "vision_tower" in getattr(plan.model, "model", {})
    _write_weights(plan, folder, progress)
    copy_files(_copied(plan.found.path), plan.found.path, folder)
    write_card(plan.found.path, folder, _note(plan))
    save_config(plan.config, folder / "config.json", keep_vision_config=keep_vision)
    try:
        load_model(folder, lazy=True)
    except ValueError as err:
        raise ModelUnusable(
            f"{plan.found.name} cannot be converted: mlx-lm refuses the result, {_line(err)}"
        ) from err


def _write_weights(plan: _Plan, folder: Path, progress: bool) -> None:
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import get_total_parameters

    from mtplx_kernel.heads.checkpoint import save_native
    from mtplx_kernel.models.progress import ProgressBar

    weights, parameters = _arrays(plan.model), get_total_parameters(plan.model)
    of_head = sum(a.nbytes for a in _arrays(plan.head).values())
    # From here on each array lives only until its shard is written.
    plan.model.update(tree_map(lambda _: mx.array([]), plan.model.parameters()))
    with ProgressBar(
        wanted=progress,
        total=sum(a.nbytes for a in weights.values()) + of_head,
        desc=f"converting {Path(plan.found.name).name}",
        unit="B",
        unit_scale=True,
    ) as bar:
        write_shards(folder, weights, parameters, bar.update)
        if plan.head is not None:
            save_native(plan.head, folder / SIDECAR)
            bar.update(of_head)


def _note(plan: _Plan) -> str:
    quantisation = plan.config.get("quantization")
    weights = (
        f"{quantisation['bits']} bits in groups of {quantisation['group_size']}"
        if quantisation
        else "as in the source"
    )
    lines = [
        f"# {plan.found.name}, converted",
        f"Converted from `{plan.found.name}` for mlx-lm by mtplx_kernel. Weights: {weights}.",
    ]
    if plan.head is not None:
        head = "as in the source" if plan.head_bits is None else f"{plan.head_bits} bits"
        lines.append(
            f"The multi-token-prediction head ({plan.head.family}) is kept in `{SIDECAR}`, {head}."
            " mtplx_kernel drafts with it; mlx-lm does not read it."
        )
    return "\n\n".join(lines)


def _copied(source: Path) -> list[Path]:
    distilled = source / DISTILLED
    return [*companions(source), *([distilled] if distilled.is_file() else [])]


def _arrays(module: Any) -> dict[str, Any]:
    from mlx.utils import tree_flatten

    arrays: Any = {} if module is None else tree_flatten(module.parameters(), destination={})
    return dict(arrays)


def _count(module: Any) -> int:
    """How many numbers a module holds, packed ones as many as they stand for."""
    bits = {path: inner.bits for path, inner in module.named_modules() if "scales" in inner}
    total = 0
    for name, array in _arrays(module).items():
        path, _, kind = name.rpartition(".")
        if path not in bits:
            total += array.size
        elif kind == "weight":
            total += array.size * 32 // bits[path]
        elif kind == "bias":
            total += array.size
    return total


def _weight_bytes(folder: Path) -> int:
    """Size of what mlx-lm reads and of the heads beside it."""
    paths = {*folder.glob("model*.safetensors"), *folder.glob("mtp*.safetensors")}
    paths |= {*folder.glob("mtp/*.safetensors"), *folder.glob(DISTILLED)}
    return sum(path.stat().st_size for path in paths)


def _precision(bits: int | None, group_size: int | None) -> str:
    return "precision kept" if bits is None else f"{bits} bits in groups of {group_size}"


def _unused(_: Any) -> Any:
    raise AssertionError("a head that is being converted is not run")


def _line(err: BaseException) -> str:
    return " ".join(str(err).split())[:300] or type(err).__name__
