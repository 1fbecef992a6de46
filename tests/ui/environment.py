"""What the tests of the views need beside Python's packages: npm's, and a browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VITEST = HERE / "node_modules" / "vitest" / "vitest.mjs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def node() -> str | None:
    """The program that runs JavaScript; None where there is none."""
    return shutil.which("node")


def installed_browser() -> str | None:
    """A chromium of the machine's own; None where there is none."""
    return next((place for name in BROWSERS if (place := shutil.which(name))), None)


def prepare() -> None:
    """Fetch what is missing.

    Raises
    ------
    subprocess.CalledProcessError
        If it cannot be had; the tool's own words are on the screen.
    """
    lock, stamp = HERE / "package-lock.json", HERE / "node_modules" / "ready"
    fetched = stamp.exists() and stamp.read_bytes() == lock.read_bytes()
    if shutil.which("npm") and not fetched:
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, check=True)
        shutil.copy(lock, stamp)
    if installed_browser() is None:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)
