"""Bars are shown on terminals and in Jupyter kernels, not to logs."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mtplx_kernel.models.watching import watched


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        (None, False),  # IPython is imported, and no shell runs
        (SimpleNamespace(), False),  # a terminal's shell, whose stream is no terminal
        (SimpleNamespace(kernel=object()), True),
    ],
)
def test_a_kernel_is_told_by_its_shell(
    monkeypatch: pytest.MonkeyPatch, shell: Any, expected: bool
) -> None:
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    # That ipykernel is installed and imported says nothing.
    monkeypatch.setitem(sys.modules, "ipykernel", ipython)  # type: ignore[arg-type]
    assert watched() is expected


def test_a_terminal_is_watched_and_a_pipe_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not watched()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert watched()
