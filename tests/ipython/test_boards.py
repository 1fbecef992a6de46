"""The progress of several requests: lines in a terminal, one updated output in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mtplx_kernel.batch import BatchResult
from mtplx_kernel.boards import LiveBoard, PrintedBoard, SilentBoard, board_for, progress
from mtplx_kernel.engine.request import Handle
from mtplx_kernel.together import Part
from tests.ipython.scripted import made, new_handle


def part(title: str, tokens: int | None = None, outcome: Any = None) -> Part:
    """A part that waits, that has so many tokens, or that has ended."""
    handle = new_handle()
    if tokens is not None:
        handle.window.admitted, handle.window.completion_tokens = 1.0, tokens

    def submit() -> Handle:
        raise AssertionError("nothing is submitted here")

    return Part(title, submit, handle, outcome)


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """What is displayed and updated, in order."""
    calls: list[tuple[str, dict[str, str]]] = []

    class Recorded:
        def display(self, bundle: dict[str, str], raw: bool) -> None:
            calls.append(("display", bundle))

        def update(self, bundle: dict[str, str], raw: bool) -> None:
            calls.append(("update", bundle))

    monkeypatch.setattr("IPython.display.DisplayHandle", Recorded)
    return calls


def test_progress_says_who_is_where() -> None:
    parts = [part("One", 3, made("a", "b", "c")), part("Two", 5), part("Three", 0), part("Four")]
    assert progress(parts, 4.4) == (
        "1 of 4 done, 8 tokens, 4 s\n"
        "[1] One (3 tokens, stop)\n"
        "[2] Two (5 tokens so far)\n"
        "[3] Three (reads the prompt)\n"
        "[4] Four (waits)"
    )


def test_of_many_parts_only_those_that_run_have_a_line() -> None:
    parts = [part(str(n)) for n in range(30)]
    parts[6] = part("six", 2)
    assert progress(parts, 0.0) == "0 of 30 done, 2 tokens, 0 s\n[7] six (2 tokens so far)"


def test_one_output_at_most_ten_times_a_second(displays: list[tuple[str, dict[str, str]]]) -> None:
    times = iter([0.0, 0.0, 0.0, 0.0, 0.09, 0.11, 0.11, 0.11, 5.0])
    board = LiveBoard(markdown=False, now=lambda: next(times))
    parts = [part("One", 1)]
    result = BatchResult(["One"], [made("a")])
    board.update(parts)
    parts[0] = part("One", 2)
    board.update(parts)
    board.update(parts)
    board.close(result)
    assert [(kind, bundle["text/plain"].splitlines()[-1]) for kind, bundle in displays] == [
        ("display", "[1] One (1 tokens so far)"),
        ("update", "[1] One (2 tokens so far)"),
        ("update", "a"),
    ]


def test_markdown_is_for_the_answers(displays: list[tuple[str, dict[str, str]]]) -> None:
    result = BatchResult(["One"], [made("*a*")])
    board = LiveBoard(markdown=True, live=False)
    board.update([part("One")])
    board.close(result)
    assert displays == [("display", {"text/plain": result.page, "text/markdown": result.markdown})]


def test_a_terminal_prints_each_end_once(capsys: pytest.CaptureFixture[str]) -> None:
    board = PrintedBoard()
    parts = [part("One", 1), part("Two", 1, made("b"))]
    for _ in range(3):
        board.update(parts)
    assert capsys.readouterr().out == "1 of 2: [2] Two (1 token, stop)\n"
    board.close(BatchResult(["Two"], [made("b")]))
    assert capsys.readouterr().out == "\n[1] Two (1 token, stop)\nb\n"


def test_the_host_and_the_wishes_choose() -> None:
    kernel: Any = SimpleNamespace(kernel="a kernel")
    terminal: Any = SimpleNamespace()
    chosen: Callable[..., Any] = board_for
    assert type(chosen(kernel, quiet=True, markdown=True, stream=True)) is SilentBoard
    assert type(chosen(kernel, quiet=False, markdown=False, stream=True)) is LiveBoard
    assert type(chosen(terminal, quiet=False, markdown=True, stream=True)) is PrintedBoard
