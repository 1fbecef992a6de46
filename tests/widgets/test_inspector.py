"""The inspector follows a request until it ends, and leaves a page that needs no kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mtplx_kernel.engine.timeline import Cycle, DecodeWindow
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.widgets import inspector
from mtplx_kernel.widgets.inspector import InspectorWidget, shown
from mtplx_kernel.widgets.tracing import Tracer
from tests.widgets.test_acceptance import until, views
from tests.widgets.test_tracing import BYTES, SOME, engine, window


@pytest.fixture
def running() -> DecodeWindow:
    return window(*SOME[:2])


@pytest.fixture
def widget(running: DecodeWindow, monkeypatch: pytest.MonkeyPatch) -> Iterator[InspectorWidget]:
    monkeypatch.setattr(inspector, "INTERVAL_S", 0.01)
    made = InspectorWidget(Tracer(running, BYTES))
    yield made
    made.close()


def state(widget: InspectorWidget) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(widget.state)
    return found


def test_a_request_is_followed_to_its_end(widget: InspectorWidget, running: DecodeWindow) -> None:
    assert state(widget)["running"]
    assert [piece[0] for piece in state(widget)["pieces"]] == ["T", "h", "e", " "]
    running.cycles.record(Cycle(1.2, 1, 1, 2, "head", 1), list(b"su"))
    until(lambda: len(state(widget)["pieces"]) == 6)
    assert state(widget)["pieces"][-1] == ["u", "bonus", 0, 3]
    running.ended = 1.3
    until(lambda: not state(widget)["running"])


def test_closing_leaves_no_thread(widget: InspectorWidget) -> None:
    before = views()
    widget.close()
    assert views() == before - 1


def test_an_unknown_request_is_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidRequest, match="no request 'x' is remembered"):
        shown(engine(window(*SOME)), "x")


def test_a_request_that_ended_is_shown_as_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    class Handle:
        def display(self, what: Any, **_: Any) -> None:
            sent.append(what)

    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    found = engine(window(*SOME, end=True))
    found = type("Engine", (), {**vars(found), "closed": False})()
    output = shown(found, "req-1")
    output.show()
    output.close()
    assert "<u" in sent[0]["text/html"]
    assert sent[0]["text/plain"].startswith("req-1: 7 tokens and an end token in 4 cycles")
