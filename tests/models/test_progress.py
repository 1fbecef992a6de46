"""Bars are drawn on terminals and for those who watch a cell, not for logs and programs."""

from __future__ import annotations

import io
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from mtplx_kernel.models import progress
from mtplx_kernel.models.catalog import _hub_bars
from mtplx_kernel.models.progress import ProgressBar, Telling, draw, watched


class Screen(io.StringIO):
    """An errors' stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """What is drawn on a terminal, with IPython and kernels out of the way."""
    screen = Screen()
    # The stream of the process itself is pytest's, which puts it back between set-up and call.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=screen, modules={}))
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    return screen


def kernel(**content: object) -> SimpleNamespace:
    """A shell in a kernel, whose cell was asked for in this way."""
    asked = {"content": content} if content else {}
    return SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda channel: asked))


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        (None, False),  # IPython is imported, and no shell runs
        (SimpleNamespace(), False),  # a terminal's shell, whose stream is no terminal
        (kernel(allow_stdin=True), True),
        (kernel(allow_stdin=False), False),  # nbclient, papermill
        (kernel(), False),  # no cell runs
    ],
)
def test_a_cell_is_watched_by_who_could_answer_a_question(
    monkeypatch: pytest.MonkeyPatch, shell: Any, expected: bool
) -> None:
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    # That ipykernel is installed and imported says nothing.
    monkeypatch.setitem(sys.modules, "ipykernel", ipython)  # type: ignore[arg-type]
    assert watched() is expected


def test_a_terminal_is_watched_and_a_pipe_is_not(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched()
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())  # type: ignore[attr-defined]
    assert not watched()


def test_the_terminal_of_a_command_in_a_cell_is_nobodys(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert not watched()


def test_nothing_of_a_bar_stays(screen: Screen) -> None:
    with ProgressBar(total=2, desc="tuning", unit="run") as bar:
        bar.update()
    first, *_, last = screen.getvalue().lstrip("\r").rstrip("\r").split("\r")
    assert first.startswith("tuning:   0%|")
    assert last.strip() == ""
    assert len(last) >= len(first.rstrip())


def test_who_wants_none_sees_none(screen: Screen) -> None:
    with ProgressBar(wanted=False, total=2, desc="tuning") as bar:
        bar.update()
    assert screen.getvalue() == ""


def test_a_bar_within_a_bar_is_not_drawn(screen: Screen) -> None:
    with ProgressBar(total=2, desc="outer"), draw(2, "inner", "run") as tick:
        tick(1)
    assert "outer" in screen.getvalue()
    assert "inner" not in screen.getvalue()
    with draw(2, "later", "run"):
        assert "later" in screen.getvalue()


def test_no_thread_is_started(screen: Screen) -> None:
    before = set(threading.enumerate())
    with ProgressBar(total=2, desc="tuning"):
        assert set(threading.enumerate()) == before


def test_what_a_thread_tells_another_draws(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "UNHURRIED_S", 0.0)
    telling = Telling()
    with telling.drawn() as look:
        look()
        assert screen.getvalue() == ""
        with telling.stage(200, "loading it", "B") as tick:
            look()
            for _ in range(3):
                tick(100)  # more than was said: it stays at the end
                time.sleep(0.11)  # bars are drawn ten times a second at most
                look()
        look()
        told = [frame.split("|")[0] for frame in screen.getvalue().split("\r") if "|" in frame]
        assert told == ["loading it:   0%", "loading it:  50%", "loading it: 100%"]
        with telling.stage(4, "measuring it", "run"):
            look()
    assert "measuring it:   0%" in screen.getvalue()
    assert screen.getvalue().rpartition("|")[2].endswith("\r")


def test_what_is_quick_is_not_drawn(screen: Screen) -> None:
    telling = Telling()
    with telling.drawn() as look, telling.stage(2, "loading it", "B") as tick:
        look()
        tick(2)
        look()
    assert screen.getvalue() == ""


def test_one_bar_for_the_files_of_the_hub(screen: Screen) -> None:
    """As its client makes them: bytes on the line, bytes on the disk, files."""
    with _hub_bars("org/model", progress=True) as bars:
        line = bars(desc="Downloading bytes", total=0, unit="B", unit_scale=True, bar_format="{n}")
        disk = bars(desc="Reconstructing (incomplete total...)", total=0, unit="B", unit_scale=True)
        with bars(total=3, desc="Fetching 3 files") as files:
            disk.total += 2000
            disk.refresh()
            disk.set_postfix_str("9 MB/s", refresh=False)
            files.update()
            line.update(700)
        disk.set_description("Reconstruction complete")
    frames = [frame for frame in screen.getvalue().split("\r") if frame.strip()]
    assert {frame.partition(":")[0] for frame in frames} == {"fetching org/model"}
    assert "0.00/2.00k [" in frames[-1]
    assert screen.getvalue().endswith(" \r")
