"""MLX's BLAS in real processes: whose code runs, that it is right, and that the label is true."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.models.elf import NotElf, read_slots
from mtplx_kernel.models.openblas import LibraryFile, OpenBlas, OpenBlasMissing, find_library

# Processes of these tests take the machine's own device, as a user's would.
linux_only = pytest.mark.skipif(
    sys.platform != "linux" or mx.device_count(mx.gpu) > 0,
    reason="on Macs and GPUs MLX is fast as it is",
)

STEPS = {
    "ensure": "from mtplx_kernel.models import blas; blas.ensure()",
    "mlx": "import mlx.core as mx; mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))",
    "scipy": (
        "import numpy as np, scipy.linalg;"
        "scipy.linalg.svd(np.ones((50, 50))); np.ones((64, 64)) @ np.ones((64, 64))"
    ),
}
REPORT = """
import json, mlx.core as mx, numpy as np, scipy.linalg
from dataclasses import asdict
from mtplx_kernel.models import binding, blas
rng = np.random.default_rng(0)
a, b = rng.standard_normal((64, 576)), rng.standard_normal((576, 300))
a32, b32 = a.astype(np.float32), b.astype(np.float32)
s = rng.standard_normal((60, 60))
s32 = s.astype(np.float32)
_, values, _ = mx.linalg.svd(mx.array(s32), stream=mx.cpu)
print(json.dumps({
    "status": asdict(blas.ensure()),
    "library": binding.bound_library().name,
    "mlx": float(abs(np.array(mx.array(a32) @ mx.array(b32)) - a32.astype(float) @ b32).max()),
    "mlx_svd": float(abs(np.array(values) - np.linalg.svd(s32.astype(float))[1]).max()),
    "numpy": float(abs(a @ b - np.einsum("ij,jk->ik", a, b)).max()),
    "scipy": float(abs(scipy.linalg.solve(s, s @ np.ones(60)) - 1).max()),
}))
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user would: without the variables that the test process sets."""
    unset = ("MTPLX_KERNEL_BLAS", "OPENBLAS_NUM_THREADS")
    inherited = {k: v for k, v in os.environ.items() if k not in unset}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def report(code: str, **environment: str) -> Any:
    return json.loads(python(code + REPORT, **environment).stdout)


def assert_all_right(seen: Any) -> None:
    assert seen["mlx"] < 2e-4
    assert seen["mlx_svd"] < 1e-4
    assert seen["numpy"] < 1e-11
    assert seen["scipy"] < 1e-9


@linux_only
@pytest.mark.parametrize("order", list(itertools.permutations(STEPS)), ids="-".join)
def test_everyone_is_right_in_every_order(order: tuple[str, ...]) -> None:
    seen = report("\n".join(STEPS[step] for step in order))
    assert seen["library"] == "libscipy_openblas.so"
    assert seen["status"]["kind"] == "openblas"
    assert seen["status"]["fast"] is True
    assert seen["status"]["reason"] is None
    assert seen["status"]["description"].startswith("OpenBLAS 0.3.")
    assert_all_right(seen)


@linux_only
def test_opting_out_leaves_mlx_alone() -> None:
    seen = report(STEPS["ensure"], MTPLX_KERNEL_BLAS="stock")
    assert seen["library"].startswith("libblas")
    assert seen["status"]["kind"] == "stock"
    assert seen["status"]["fast"] is False
    assert seen["status"]["threads"] is None
    assert seen["status"]["reason"].startswith("MTPLX_KERNEL_BLAS=stock is set")
    assert_all_right(seen)


@linux_only
def test_the_label_stays_true_when_the_user_opts_out_too_late() -> None:
    code = f"{STEPS['ensure']}\nimport importlib, os; os.environ['MTPLX_KERNEL_BLAS'] = 'stock'\n"
    seen = report(code + "importlib.reload(blas)\n")
    assert seen["library"] == "libscipy_openblas.so"
    assert seen["status"]["kind"] == "openblas"


@linux_only
def test_without_the_extra_mlx_runs_and_the_reason_says_what_to_do() -> None:
    seen = report(f"import sys; sys.modules['scipy_openblas32'] = None\n{STEPS['ensure']}")
    assert seen["library"].startswith("libblas")
    reason = seen["status"]["reason"]
    assert reason.startswith("no fast BLAS, as the package scipy-openblas32 is not installed: ")
    assert reason.endswith("; pip install scipy-openblas32 and load again")
    assert "\n" not in reason
    assert_all_right(seen)


@linux_only
def test_a_reloaded_module_recognises_its_own_work() -> None:
    code = f"{STEPS['ensure']}\nimport importlib; importlib.reload(blas)\n"
    seen = report(code)
    assert seen["status"]["kind"] == "openblas"
    assert seen["status"]["reason"] is None


@linux_only
def test_threads_can_be_set_and_are_reported() -> None:
    seen = python(
        "from mtplx_kernel.models import blas\n"
        "assert blas.threads() is None and blas.set_threads(2) is None\n"
        "assert blas.calibrate(lambda: 1.0) is None\n"
        "blas.ensure()\n"
        "print(blas.set_threads(2), blas.threads(), blas.ensure().description)\n"
        "print(blas.set_threads(0), blas.threads(), blas.ensure().description)\n"
    )
    two, one = seen.stdout.splitlines()
    assert two.startswith("2 2 OpenBLAS")
    assert two.endswith(", 2 threads")
    assert one.startswith("1 1 OpenBLAS")
    assert one.endswith(", 1 thread")


@linux_only
def test_calibration_times_the_work_and_keeps_the_best() -> None:
    code = (
        "from mtplx_kernel.models import blas\n"
        "blas.available_cpus = lambda: 4\n"
        "blas.ensure()\n"
        "seconds = {1: 5.0, 2: 1.0, 4: 3.0}\n"
        "print(blas.calibrate(lambda: seconds[blas.threads()]), blas.threads())\n"
    )
    assert python(code).stdout == "2 2\n"


@linux_only
def test_the_users_thread_count_is_kept() -> None:
    code = (
        "from mtplx_kernel.models import blas\n"
        "print(blas.ensure().threads, blas.calibrate(lambda: 1 / 0))\n"
    )
    assert python(code, OPENBLAS_NUM_THREADS="1").stdout == "1 1\n"


@linux_only
def test_many_threads_may_ask_at_once() -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from mtplx_kernel.models import blas\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    seen = set(pool.map(lambda _: blas.ensure(), range(32)))\n"
        "print(len(seen), seen.pop().kind)\n"
    )
    assert python(code).stdout == "1 openblas\n"


CPU = "import mlx.core as mx; mx.set_default_device(mx.cpu)\n"
GPU = "import mlx.core as mx; mx.default_device = lambda: mx.Device(mx.gpu)\n"
MAC = "import sys; sys.platform = 'darwin'\n"
ASK = "from mtplx_kernel.models import blas; s = blas.ensure(); print(s.kind, s.fast, s.reason)\n"


@pytest.mark.parametrize("system", ["", MAC], ids=["this system", "a Mac"])
def test_a_gpu_is_named_whatever_the_system(system: str) -> None:
    assert python(GPU + system + ASK).stdout == "gpu True None\n"


def test_the_cpu_of_a_mac_is_fast_as_it_is() -> None:
    assert python(CPU + MAC + ASK).stdout == "accelerate True None\n"


def test_another_default_device_is_another_decision() -> None:
    cpu = "mx.default_device = lambda: mx.Device(mx.cpu)\n"
    again = "s = blas.ensure(); print(s.kind, s.threads is None)\n"
    code = GPU + MAC + ASK + cpu + again + GPU + again
    assert python(code).stdout == "gpu True None\naccelerate True\ngpu True\n"


@linux_only
def test_looking_decides_nothing() -> None:
    code = (
        "import os, mlx.core\n"
        "from mtplx_kernel.models import binding, blas\n"
        "print(blas.current())\n"
        "blas.ensure()\n"
        "del os.environ['MTPLX_KERNEL_BLAS']\n"
        "for look in (blas.current, blas.ensure, blas.current):\n"
        "    status = look()\n"
        "    print(status.kind, status.threads, binding.bound_library().name)\n"
        "blas.set_threads(2)\n"
        "print(blas.current() == blas.ensure(), blas.current().threads)\n"
    )
    environment = {"MTPLX_KERNEL_BLAS": "stock", "OPENBLAS_NUM_THREADS": "1"}
    first, before, loaded, after, last = python(code, **environment).stdout.splitlines()
    assert first == "None"
    assert before.startswith("stock None libblas")
    assert loaded == after == "openblas 1 libscipy_openblas.so"
    assert last == "True 2"


def test_the_default_device_of_a_process_is_that_of_its_threads() -> None:
    code = (
        "import threading, mlx.core as mx\n"
        "mx.set_default_device(mx.Device(mx.cpu, 1))\n"
        "thread = threading.Thread(target=lambda: print(mx.default_device()))\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    assert python(code).stdout == "Device(cpu, 1)\n"


@linux_only
def test_the_binding_is_unknown_before_mlx_is_imported() -> None:
    code = (
        "from mtplx_kernel.models import binding\n"
        "try: binding.bound_library()\n"
        "except binding.BindingUnknown as err: print(err)\n"
    )
    assert python(code).stdout == "no libmlx is loaded in this process\n"


@linux_only
def test_products_and_decompositions_are_redirected_and_nothing_else() -> None:
    code = (
        "import mlx.core as mx\n"
        "from mtplx_kernel.models import binding, openblas\n"
        "library = openblas.OpenBlas(openblas.find_library())\n"
        "print(*binding.redirect(library.path, library.address_of))\n"
    )
    names = python(code).stdout.split()
    assert {"cblas_sgemm", "cblas_dgemm", "sgesdd_", "spotrf_"} <= set(names)
    assert all(name.startswith("cblas_") or name.endswith("_") for name in names)


@linux_only
def test_what_the_new_library_only_borrows_is_left_alone() -> None:
    code = (
        "import ctypes, mlx.core as mx\n"
        "from mtplx_kernel.models import binding, openblas\n"
        "library = openblas.OpenBlas(openblas.find_library())\n"
        "address = ctypes.cast(ctypes.CDLL(str(library.path)).memcpy, ctypes.c_void_p).value\n"
        "print(binding.redirect(library.path, lambda name: address))\n"
        "print(binding.bound_library().name)\n"
    )
    nothing, library = python(code).stdout.split()
    assert nothing == "()"
    assert library.startswith("libblas")


def test_a_conda_environment_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy_openblas32", None)
    with pytest.raises(OpenBlasMissing, match="scipy-openblas32 is not installed"):
        find_library(tmp_path)
    library = tmp_path / "lib" / "libopenblas.so"
    library.parent.mkdir()
    library.touch()
    assert find_library(tmp_path) == LibraryFile(library, "")


def test_a_damaged_library_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "libopenblas.so"
    broken.write_bytes(b"\x7fELF")
    with pytest.raises(OpenBlasMissing, match=r"libopenblas.so cannot be used"):
        OpenBlas(LibraryFile(broken, ""))


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\xff" * 64])
def test_other_files_are_no_elf_libraries(tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(NotElf, match="is not a readable 64-bit ELF library"):
        read_slots(other)
