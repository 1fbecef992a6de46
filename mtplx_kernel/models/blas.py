"""The BLAS behind MLX's matrix products on the CPU: a fast one on Linux, and the truth about it.

MLX's Linux wheel for CPUs is linked to a reference BLAS. `openblas` finds a fast one, `binding`
makes MLX call it and reads back that it does, `threads` decides how many threads it gets.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from mtplx_kernel.models.binding import BindingUnknown, bound_library, redirect
from mtplx_kernel.models.openblas import LibraryFile, OpenBlas, OpenBlasMissing, find_library
from mtplx_kernel.models.threads import (
    ThreadGovernor,
    available_cpus,
    choose_threads,
    pinned_threads,
)

__all__ = [
    "BlasStatus",
    "ThreadGovernor",
    "calibrate",
    "choose_threads",
    "current",
    "ensure",
    "set_threads",
    "threads",
]

OPT_OUT_VARIABLE = "MTPLX_KERNEL_BLAS"
_COST = "decoding runs at about half the speed, and prompts take some 20 times as long"
_REMEDY = "pip install scipy-openblas32 and load again"


@dataclass(frozen=True)
class BlasStatus:
    """What computes matrix products in this process.

    Attributes
    ----------
    kind
        "openblas", "stock" (MLX's own reference BLAS), "accelerate" or "gpu".
    description
        One line for people, such as "OpenBLAS 0.3.34 SkylakeX, 2 threads".
    fast
        False when a faster one could be had.
    threads
        BLAS threads in use, where they can be set, else None.
    reason
        When not fast: why, what it costs and what to do, in one line.
    """

    kind: Literal["openblas", "stock", "accelerate", "gpu"]
    description: str
    fast: bool
    threads: int | None = None
    reason: str | None = None


class _Process:
    """What MLX was given in this process; its pointers are the process's, so there is only one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.status: BlasStatus | None = None
        self.library: OpenBlas | None = None


_process = _Process()


def ensure() -> BlasStatus:
    """Give MLX the fastest BLAS that can be had here, and say what it is.

    It is decided once, and again where that was not the fast one or the default device has changed.
    It may be called at any time: what MLX multiplies afterwards is fast. On Linux CPUs an OpenBLAS
    that MLX already calls is kept; else the `cpu` extra's is taken, else a conda environment's,
    else MLX's own reference BLAS stays. With `MTPLX_KERNEL_BLAS=stock` nothing is changed.

    Returns
    -------
    BlasStatus
        Never an error: what could not be had is named in `reason`.
    """
    with _process.lock:
        on_gpu = _on_gpu()
        kept = _process.status
        if kept is None or kept.reason is not None or (kept.kind == "gpu") != on_gpu:
            kept = _process.status = _decide(on_gpu)
        return _as_now(kept)


def current() -> BlasStatus | None:
    """What `ensure` decided last, with the threads as they are now; None before its first call.

    It decides nothing and changes nothing, so it may be called while a request runs.
    """
    with _process.lock:
        return None if _process.status is None else _as_now(_process.status)


def set_threads(count: int) -> int | None:
    """Let the BLAS use `count` threads, at least 1.

    Returns the count in force, or None where it cannot be set.
    """
    if _process.library is not None:
        _process.library.threads = max(1, count)
    return threads()


def threads() -> int | None:
    """How many threads the BLAS uses, or None where that cannot be told."""
    return None if _process.library is None else _process.library.threads


def calibrate(run: Callable[[], float]) -> int | None:
    """Choose and set the number of BLAS threads by timing `run`, which returns its seconds.

    OPENBLAS_NUM_THREADS is respected. Returns the count in force, or None where it cannot be set.
    """
    if _process.library is None:
        return None

    def measure(count: int) -> float:
        set_threads(count)
        return run()

    return set_threads(choose_threads(measure, available_cpus()))


def _on_gpu() -> bool:
    import mlx.core as mx

    return bool(mx.default_device().type == mx.DeviceType.gpu)


def _as_now(status: BlasStatus) -> BlasStatus:
    library = _process.library
    if library is None or status.kind != "openblas":
        return status
    count = library.threads
    plural = "thread" if count == 1 else "threads"
    return replace(status, threads=count, description=f"{library.name}, {count} {plural}")


def _decide(on_gpu: bool) -> BlasStatus:
    if on_gpu:
        return BlasStatus("gpu", "the GPU's own matrix kernels", fast=True)
    if sys.platform == "darwin":
        return BlasStatus("accelerate", "Accelerate", fast=True)
    try:
        bound = bound_library()
        if bound is not None and "openblas" in bound.name:
            _process.library = OpenBlas(
                LibraryFile(bound, "scipy_" if "scipy" in bound.name else "")
            )
        elif os.environ.get(OPT_OUT_VARIABLE, "").strip().lower() == "stock":
            return _stock(f"{OPT_OUT_VARIABLE}=stock is set: {_COST}; unset it and load again")
        else:
            _process.library = _redirected()
    except OpenBlasMissing as err:
        return _stock(f"no fast BLAS, as {_line(err)}: {_COST}; {_REMEDY}")
    except (BindingUnknown, OSError) as err:
        return _stock(f"MLX's BLAS cannot be changed here, as {_line(err)}: {_COST}")
    return BlasStatus("openblas", _process.library.name, fast=True)


def _redirected() -> OpenBlas:
    """Load an OpenBLAS, make MLX call it, and look whether it does."""
    library = OpenBlas(find_library())
    redirect(library.path, library.address_of)
    bound = bound_library()
    if bound is None or "openblas" not in bound.name:
        raise BindingUnknown(f"MLX still calls {bound}")
    library.threads = pinned_threads() or available_cpus()
    return library


def _stock(reason: str) -> BlasStatus:
    return BlasStatus("stock", "MLX's own reference BLAS, 1 thread", fast=False, reason=reason)


def _line(err: Exception) -> str:
    return " ".join(str(err).split())
