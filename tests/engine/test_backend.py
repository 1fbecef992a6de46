"""MLX without a backend, as a bare `pip install` leaves it on Linux: one line names the cure."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_BACKEND = """
import sys
from importlib.abc import MetaPathFinder

class NoBackend(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "mlx.core":
            raise ImportError(
                "libmlx.so: cannot open shared object file: No such file or directory", name=name
            )

sys.meta_path.insert(0, NoBackend())
"""
CURE = (
    "MLX cannot be imported (libmlx.so: cannot open shared object file: No such file or directory):"
    " on Linux it needs exactly one of the extras cpu, cuda12 and cuda13;"
    " pip install 'mtplx-kernel[cpu]', or the extra for your GPU's driver, and restart Python"
)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_BACKEND + code], capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize("asked", ["mk.load('smollm2-135m')", "mk.Engine", "mk.Engine('x')"])
def test_python_is_told(asked: str) -> None:
    code = (
        "import mtplx_kernel as mk\n"
        "from mtplx_kernel.errors import BackendMissing, MTPLXError\n"
        "assert issubclass(BackendMissing, (MTPLXError, ImportError))\n"
        "for _ in range(2):\n"
        f"    try: {asked}\n"
        "    except BackendMissing as error: print(error)\n"
    )
    assert python(code).stdout == f"{CURE}\n" * 2


def test_a_notebook_is_told() -> None:
    code = (
        "from IPython.core.error import UsageError\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "from traitlets.config import Config\n"
        "shell = InteractiveShell(config=Config({'HistoryManager': {'enabled': False}}))\n"
        "shell.run_line_magic('load_ext', 'mtplx_kernel')\n"
        "try: shell.run_line_magic('mtplx', 'load smollm2-135m')\n"
        "except UsageError as error: print(error)\n"
    )
    done = python(code)
    assert (done.stdout.splitlines()[-1], done.stderr) == (CURE, "")


def test_other_import_errors_are_left_alone() -> None:
    code = (
        "sys.meta_path.pop(0)\n"
        "sys.modules['anyio'] = None\n"
        "import mtplx_kernel as mk\n"
        "try: mk.load\n"
        "except ImportError as error: print(type(error).__name__, error.name)\n"
    )
    assert python(code).stdout == "ModuleNotFoundError anyio\n"
