"""The test process computes on the CPU with MLX's own BLAS: there, equality is exact."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, settings

from mtplx_kernel.decoding.depth import CostCurve
from mtplx_kernel.decoding.fitting import LANE_BLOCKS
from mtplx_kernel.models.threads import THREADS_VARIABLE, available_cpus

MOST_WORKERS = 4
"""Each may hold the default model and a kernel of its own: about 2 GB."""

# Row-invariant arithmetic: a row's numbers do not depend on the rows that share its products.
os.environ["MTPLX_KERNEL_BLAS"] = "stock"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# MLX has one default device a process, so the owner threads of engines in it follow. Processes that
# tests start are a user's: they take the machine's device.
mx.set_default_device(mx.cpu)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of a kernel that one worker starts would wait at barriers for the other's.
    os.environ.setdefault(THREADS_VARIABLE, "1")

# The same examples on every run, however long each takes on a busy machine.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: a worker for each processor, and none beside this one for a single."""
    processors = available_cpus()
    return min(processors, MOST_WORKERS) if processors > 1 else 0


def pytest_collection_finish() -> None:
    """Spare what is loaded by now from every later collection: engines collect when they close."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _measurements_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure is no user's: it is kept elsewhere, and forgotten."""
    folder: Path = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtplx_kernel.models.measured._folder", lambda: folder)
        yield


def _lane(target: Any, rows: int, **_: Any) -> tuple[CostCurve, bool]:
    seconds = tuple(0.001 * rows**0.5 * (1 + 0.1 * n) for n, _ in enumerate(LANE_BLOCKS))
    return CostCurve(LANE_BLOCKS, seconds), True


@pytest.fixture(autouse=True, scope="session")
def _lanes_that_pay() -> Iterator[None]:
    """What rows cost is made up: on a busy machine no lane of a tiny model might seem to pay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtplx_kernel.engine.fit.measure_lane", _lane)
        yield
