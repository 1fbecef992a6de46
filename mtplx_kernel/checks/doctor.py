"""What this installation runs on, and what is wrong with it, for ``mtplx-kernel doctor``."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mtplx_kernel.models import measured
from mtplx_kernel.models.catalog import cache_dir, known_models
from mtplx_kernel.models.threads import available_cpus
from mtplx_kernel.report import labelled, size


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found: lines for people, and the problems among them.

    Attributes
    ----------
    rows
        Labels and texts.
    problems
        What keeps a model from running; what only makes it slow stands in the rows.
    """

    rows: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "; ".join(self.problems) if self.problems else "all is well"
        return labelled([*self.rows, ("Verdict", verdict)])


def examine() -> Examination:
    """Look at versions, device, BLAS, cache and models; nothing is fetched or changed."""
    cores = available_cpus()
    plural = "core" if cores == 1 else "cores"
    rows = [
        ("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        ("Processor", f"{measured.processor()}, {cores} usable {plural}"),
    ]
    problems = []
    try:
        rows += _backend()
    except ImportError as error:
        reason = " ".join(str(error).split())
        problems.append(f"MLX cannot be imported ({reason}): install one of the extras")
    writable = _writable(cache_dir())
    if not writable:
        problems.append(f"the cache folder {cache_dir()} cannot be written: set MTPLX_KERNEL_CACHE")
    rows.append(("Cache", f"{cache_dir()}, {measured.count()} measurements kept"))
    rows.append(("Models", "; ".join(_models())))
    if importlib.util.find_spec("matplotlib") is None:
        rows.append(("Pictures", "none: pip install matplotlib for that of tune"))
    return Examination(tuple(rows), tuple(problems))


def _backend() -> list[tuple[str, str]]:
    import mlx.core as mx

    from mtplx_kernel.models import blas

    status = blas.ensure()
    device = "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"
    machine = measured.machine(device, status.description)
    versions = ", ".join(f"{name} {machine[name]}" for name in measured.VERSIONED)
    line = f"{status.description}: {status.reason}" if status.reason else status.description
    return [("Versions", versions), ("Device", machine["device"]), ("BLAS", line)]


def _models() -> Iterator[str]:
    for listing in known_models():
        here = size(listing.size_bytes) if listing.cached else "not fetched"
        yield f"{listing.name} ({here})"


def _writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one that is there, can be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
