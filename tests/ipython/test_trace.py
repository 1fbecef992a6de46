"""%%mtplx --trace: the tokens of an answer marked by how they came, in terminal and notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mtplx_kernel.display import TraceSink, sink_for
from mtplx_kernel.engine.request import FinishReason, Generation, Request
from mtplx_kernel.engine.timeline import Cycle
from tests.ipython import scripted
from tests.ipython.conftest import Bench
from tests.ipython.scripted import Answer, new_shell

Shown = Callable[[], str]
PIECES = ("Hello", " <there>", ".")
TABLE = [
    "req-1: 3 tokens in 2 cycles (1.50 a cycle), 1 of 1 draft right (100%)",
    "[accepted draft], <bonus after right drafts>",
    "cycle     ms  drafted by  right  rows  tokens",
    "    1                      none     1  Hello",
    "    2  100.0        head    1/1     1  [ <there>]<.>",
]


@pytest.fixture
def traced(loaded: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose answers come in two cycles, the second with a draft."""
    untraced = scripted.generation

    def generation(
        request: Request, pieces: Sequence[str], finish: FinishReason, error: str | None = None
    ) -> Generation:
        found = untraced(request, pieces, finish, error)
        cycles = Cycle(0.5, 0, 0, 1, None, 1), Cycle(0.6, 1, 1, len(pieces) - 1, "head", 1)
        found.window.cycles.record(cycles[0], found.token_ids[:1])
        found.window.cycles.record(cycles[1], found.token_ids[1:])
        return found

    monkeypatch.setattr(scripted, "generation", generation)
    engine: Any = loaded.engine
    engine.tokenizer = SimpleNamespace(decode=lambda ids: "".join(PIECES[i] for i in ids))
    loaded.engine.answers = [Answer(PIECES)]
    return loaded


def test_a_terminal_prints_the_cycles_below_the_answer(traced: Bench, shown: Shown) -> None:
    result = traced.run("%%mtplx --trace\nHi?\n")
    assert isinstance(result, Generation)
    lines = shown().splitlines()
    assert lines[0] == "Hello <there>."
    assert lines[1:-1] == TABLE
    assert lines[-1].endswith("<stop: 3 tokens, mode mtp>")


def test_a_notebook_gets_the_marked_text_in_the_place_of_the_plain_one(
    traced: Bench, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, dict[str, str]]] = []

    class Handle:
        def display(self, bundle: dict[str, str], raw: bool) -> None:
            sent.append(("display", bundle))

        def update(self, bundle: dict[str, str], raw: bool) -> None:
            sent.append(("update", bundle))

    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    monkeypatch.setattr(traced.shell, "kernel", "a kernel", raising=False)
    traced.run("%%mtplx --trace\nHi?\n;")
    assert shown() == ""
    assert sent[0] == (
        "display",
        {"text/html": '<pre style="white-space:pre-wrap">Hello</pre>', "text/plain": "Hello"},
    )
    kind, last = sent[-1]
    assert kind == "update"
    assert "Hello<u style=" in last["text/html"]
    assert "> &lt;there&gt;</u><b style=" in last["text/html"]
    assert last["text/plain"].splitlines() == ["Hello <there>.", "", *TABLE]


def test_an_interrupted_answer_is_traced_too(traced: Bench, shown: Shown) -> None:
    traced.engine.answers = [Answer(PIECES, interrupted_after=1)]
    traced.run("%%mtplx --trace\nHi?\n")
    said = shown()
    assert "req-1: 2 tokens in 2 cycles" in said
    assert said.rstrip().endswith("the partial answer is in _mtplx.")


def test_without_a_front_end_the_text_is_printed_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = new_shell()
    wishes = {"quiet": False, "markdown": False, "stream": True}
    assert not isinstance(sink_for(shell, **wishes, trace=True), TraceSink)
    monkeypatch.setattr(shell, "kernel", "a kernel", raising=False)
    assert type(sink_for(shell, **wishes, trace=True)) is TraceSink
