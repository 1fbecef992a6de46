"""Sinks by host: what is shown, how often, and what is passed over."""

from __future__ import annotations

from typing import Any

import pytest

from mtplx_kernel.display import (
    MarkdownSink,
    PrintSink,
    QuietResults,
    SilentSink,
    WholeSink,
    sink_for,
)
from tests.ipython.scripted import new_shell


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The Markdown outputs and their updates, as (kind, text)."""
    sent: list[tuple[str, str]] = []

    def record(kind: str) -> Any:
        def method(self: object, bundle: dict[str, str], raw: bool) -> None:
            assert raw
            assert bundle["text/plain"] == bundle["text/markdown"]
            sent.append((kind, bundle["text/markdown"]))

        return method

    monkeypatch.setattr("IPython.display.DisplayHandle.display", record("display"))
    monkeypatch.setattr("IPython.display.DisplayHandle.update", record("update"))
    return sent


def test_markdown_is_updated_ten_times_a_second_at_most(published: list[tuple[str, str]]) -> None:
    clock = Clock()
    sink = MarkdownSink(now=clock)
    for n, piece in enumerate("abcdefghijklmnopqrst"):
        clock.now = n * 0.03125
        sink.write(piece)
    sink.close()
    assert published == [
        ("display", "a"),
        ("update", "abcde"),
        ("update", "abcdefghi"),
        ("update", "abcdefghijklm"),
        ("update", "abcdefghijklmnopq"),
        ("update", "abcdefghijklmnopqrst"),
    ]


def test_markdown_shows_no_blank_output_and_nothing_twice(
    published: list[tuple[str, str]],
) -> None:
    sink = MarkdownSink(now=Clock())
    sink.write("\n")
    assert published == []
    sink.write("a")
    sink.close()
    assert published == [("display", "\na")]


def test_markdown_without_streaming_is_shown_once(published: list[tuple[str, str]]) -> None:
    sink = MarkdownSink(live=False, now=Clock())
    sink.write("a")
    sink.write("b")
    sink.close()
    assert published == [("display", "ab")]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [(["a", "b"], "ab\n"), (["a\n"], "a\n"), ([], ""), (["é", "\n\n"], "é\n\n")],
)
@pytest.mark.parametrize("sink_class", [PrintSink, WholeSink])
def test_printed_text_ends_its_line(
    pieces: list[str],
    shown: str,
    sink_class: type[PrintSink | WholeSink],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = sink_class()
    for piece in pieces:
        sink.write(piece)
    sink.close()
    assert capsys.readouterr().out == shown
    assert sink.text == "".join(pieces)


def test_hosts_and_wishes_choose_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = new_shell()
    assert type(sink_for(shell, quiet=False, markdown=True, stream=True)) is PrintSink
    assert type(sink_for(shell, quiet=False, markdown=False, stream=False)) is WholeSink
    assert type(sink_for(shell, quiet=True, markdown=True, stream=True)) is SilentSink
    monkeypatch.setattr(shell, "kernel", "a kernel", raising=False)
    assert type(sink_for(shell, quiet=False, markdown=True, stream=True)) is MarkdownSink


def test_one_value_is_passed_over_once() -> None:
    shown: list[object] = []
    hook = QuietResults(shown.append)
    value, other = object(), object()

    def make() -> None:
        hook.silence(value)

    make()
    hook(value)
    assert shown == []
    make()
    hook.forget()
    hook(value)
    assert shown == [value]
    shown.clear()
    hook.silence(value)
    hook(value)
    hook(value)
    hook.silence(value)
    hook(other)
    hook(value)
    assert shown == [value, other, value]


def test_a_value_is_passed_over_only_where_it_was_made() -> None:
    shown: list[object] = []
    hook = QuietResults(shown.append)
    value = object()

    def another_statement() -> None:
        hook(value)

    hook.silence(value)
    another_statement()
    assert shown == [value]
