"""The set-up script and the Makefile: the right backend, a truthful stamp, one-line failures."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "head", "dirname", "rm", "cat", "make")
# These tests may themselves run under make, whose variables must not reach the make they start.
PLAIN = {"PATH": os.environ["PATH"]}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder to be PATH: only the shell's own tools, no Python and no driver."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, f"this test needs {tool}"
        (folder / tool).symlink_to(found)
    say(folder, "uname", "Linux")
    return folder


def say(folder: Path, name: str, text: str, code: int = 0) -> None:
    """Put a program there that prints `text` and ends with `code`."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    program.chmod(0o755)


def setup(machine: Path, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", ".ci/setup.sh", *words],
        cwd=cwd,
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with nothing set up."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", ".ci/setup.sh"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize(
    ("driver", "backend"),
    [("580.65.06", "cuda13"), ("610.10", "cuda13"), ("550.54.14", "cuda12"), ("470.82.01", "cpu")],
)
def test_backend_follows_the_nvidia_driver(machine: Path, driver: str, backend: str) -> None:
    say(machine, "nvidia-smi", driver)
    assert setup(machine, "backend").stdout == f"{backend}\n"


def test_backend_is_cpu_without_a_working_driver(machine: Path) -> None:
    assert setup(machine, "backend").stdout == "cpu\n"
    say(machine, "nvidia-smi", "NVIDIA-SMI has failed", code=9)
    assert setup(machine, "backend").stdout == "cpu\n"


def test_backend_is_none_on_macos(machine: Path) -> None:
    say(machine, "uname", "Darwin")
    assert setup(machine, "backend").stdout == "none\n"


def test_unknown_extra_is_refused_in_one_line(machine: Path, checkout: Path) -> None:
    done = setup(machine, "install", "cuda11", ".venv/ready-cuda11", cwd=checkout)
    assert done.returncode == 1
    assert done.stderr == "setup: EXTRA=cuda11 is unknown; allowed: none, cpu, cuda12, cuda13\n"


def test_missing_python_is_one_line_and_leaves_no_stamp(machine: Path, checkout: Path) -> None:
    say(machine, "python3", "Python 3.9 is too old", code=1)
    done = setup(machine, "install", "cpu", ".venv/ready-cpu", cwd=checkout)
    assert done.returncode == 1
    assert done.stderr == (
        "setup: no Python 3.11 or newer on PATH; install one, or set PYTHON=/path/to/python3\n"
    )
    assert not (checkout / ".venv").exists()


def test_python_without_ensurepip_and_pip_is_one_line(machine: Path, checkout: Path) -> None:
    python = machine / "python3"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*|*pip*) exit 1;; esac\n')
    python.chmod(0o755)
    done = setup(machine, "install", "cpu", ".venv/ready-cpu", cwd=checkout)
    assert done.returncode == 1
    assert done.stderr == (
        "setup: python3 has neither ensurepip nor pip; install them (Debian, Ubuntu: "
        "apt install python3-venv), or set PYTHON to another Python >= 3.11\n"
    )


def fake_environment(checkout: Path, pip_code: int) -> None:
    """A .venv whose Python answers every call, with `pip_code` for installations."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '*"pip show"*) exit 1;;\n'
        f'*"pip install"*) echo "$@" >>pip.log; exit {pip_code};;\n'
        "esac\n"
    )
    python.chmod(0o755)


def make(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "EXTRA=cpu", *words], cwd=checkout, env=PLAIN, capture_output=True, text=True
    )


def test_second_make_reuses_what_the_first_set_up(checkout: Path) -> None:
    fake_environment(checkout, pip_code=0)
    assert make(checkout, "setup").returncode == 0
    assert make(checkout, "setup").returncode == 0
    assert (checkout / "pip.log").read_text() == "-m pip install --editable .[cpu,dev]\n"
    assert (checkout / ".venv" / "ready-cpu").read_text() == f"{checkout}\n"


def test_moved_checkout_is_set_up_again(checkout: Path, tmp_path: Path) -> None:
    fake_environment(checkout, pip_code=0)
    make(checkout, "setup")
    moved = checkout.rename(tmp_path / "moved")
    make(moved, "setup")
    assert len((moved / "pip.log").read_text().splitlines()) == 2


def test_failed_installation_leaves_no_stamp(checkout: Path) -> None:
    fake_environment(checkout, pip_code=1)
    done = make(checkout, "setup")
    assert done.returncode == 2
    assert "setup: pip could not install the packages" in done.stderr
    assert not list((checkout / ".venv").glob("ready-*"))


def test_ci_runs_the_test_command_of_the_readme(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "Makefile").write_text("test:\n\t@echo ran $@; exit 3\n")
    done = subprocess.run(
        ["bash", ".ci/run"], cwd=tmp_path, env=PLAIN, capture_output=True, text=True
    )
    assert done.stdout == "ran test\n"
    assert done.returncode != 0
    assert "make test" in (ROOT / "README.md").read_text()
