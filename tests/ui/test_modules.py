"""The JavaScript of the views by itself, where what tests it has been fetched."""

from __future__ import annotations

import subprocess

import pytest

from tests.ui.environment import HERE, VITEST, node


def test_the_modules_of_the_views() -> None:
    program = node()
    if program is None or not VITEST.exists():
        pytest.skip("vitest is not there: make ui fetches it, where npm is installed")
    done = subprocess.run(
        [program, str(VITEST), "run"], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
