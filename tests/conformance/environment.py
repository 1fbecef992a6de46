"""The environments of the suites: made the first time, and again when a pin changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conformance.catalogue import HERE, NODE, PYTHON, ROOT

NO_NPM = "npm is not installed"


def prepare() -> None:
    """Make the Python environment of the suites, and fetch their npm packages.

    Raises
    ------
    subprocess.CalledProcessError
        If one cannot be had; the tool's own words are on the screen.
    """
    wanted = HERE / "requirements.txt"
    stamp = PYTHON.parents[1] / "ready"
    if not _made_of(stamp, wanted):
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(PYTHON.parents[1]))
        pip = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
        _run(*pip, "install", "--quiet", "--requirement", str(wanted))
        shutil.copy(wanted, stamp)
    if has_npm():
        lock, stamp = HERE / "package-lock.json", HERE / "node_modules/ready"
        if not _made_of(stamp, lock):
            # Node itself is one of the packages: clients of today need a newer one than some have.
            _run("npm", "ci", "--no-audit", "--no-fund", "--prefix", str(HERE))
            shutil.copy(lock, stamp)


def has_npm() -> bool:
    """Whether npm's suites can run."""
    return NODE.exists() or shutil.which("npm") is not None


def _made_of(stamp: Path, wanted: Path) -> bool:
    return stamp.exists() and stamp.read_bytes() == wanted.read_bytes()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)
