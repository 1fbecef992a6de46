"""The live timeline: what is sent, how often, and that it ends."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ipywidgets.widgets.widget import _instances

import mtplx_kernel as mk
from mtplx_kernel.engine.timeline import Timeline
from mtplx_kernel.widgets.layout import as_data, layout, line_data
from mtplx_kernel.widgets.timeline import INTERVAL_S, SETTLE_S, TimelineWidget, shown
from tests.tiny import write
from tests.widgets.timelines import cycles, example, request


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("llama", tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def widgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TimelineWidget]]:
    """Widgets without their threads, which are closed in the end."""
    monkeypatch.setattr("mtplx_kernel.widgets.pump.Pump.start", lambda self: None)
    made = list[TimelineWidget]()
    yield made
    for widget in made:
        widget.close()


def head(widget: TimelineWidget) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(widget.live)["head"]
    return found


def ids(text: str) -> list[str]:
    """The requests of the lines in a message."""
    read = json.loads(text)
    return [line["id"] for line in (read["lines"] if isinstance(read, dict) else read)]


def test_the_first_message_has_everything(widgets: list[TimelineWidget]) -> None:
    timeline = example()
    widgets.append(TimelineWidget(timeline))
    (widget,) = widgets
    assert ids(widget.settled) == ["alone", "b", "c", "d<x>", "e"]
    assert ids(widget.live) == []
    placed = layout(timeline.snapshot(), 900)
    same = json.loads(json.dumps(as_data(placed)))
    assert head(widget) == {**same, "running": False, "tok_s": 8.0}
    lines = json.loads(json.dumps([line_data(line) for line in placed.lines]))
    assert json.loads(widget.settled) == lines


def test_open_requests_are_sent_again_and_ended_ones_once(
    widgets: list[TimelineWidget], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [20.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("mtplx_kernel.engine.timeline.time", clock)
    timeline = example()
    widgets.append(TimelineWidget(timeline))
    (widget,) = widgets
    settled = widget.settled
    assert not widget.refresh()
    running = request("f", 20.0, 20.1, 20.2)
    timeline.open(running)
    now[0] = 20.5
    assert widget.refresh()
    assert (ids(widget.live), widget.settled) == (["f"], settled)
    assert head(widget)["running"]
    assert head(widget)["end"] == 10.5
    running.ended, running.finish_reason = 20.6, "stop"
    now[0] = 20.7
    assert widget.refresh()
    assert (ids(widget.live), widget.settled) == (["f"], settled), "too soon after the last"
    now[0] = 20.0 + SETTLE_S
    assert widget.refresh()
    assert ids(widget.live) == []
    assert ids(widget.settled) == ["alone", "b", "c", "d<x>", "e", "f"]
    assert not widget.refresh()


def test_a_line_is_settled_with_its_end_only(widgets: list[TimelineWidget]) -> None:
    """The owner thread writes the time of an end before its reason."""
    timeline = Timeline()
    ending = request("a", 0.0, 0.0, 0.1, 1.0)
    timeline.open(ending)
    widgets.append(TimelineWidget(timeline))
    (widget,) = widgets
    assert (ids(widget.live), ids(widget.settled)) == (["a"], [])
    ending.finish_reason = "stop"
    widget.refresh()
    assert (ids(widget.live), ids(widget.settled)) == ([], ["a"])
    assert "ended: stop" in json.loads(widget.settled)[0]["tells"]


def test_forgotten_requests_leave_the_messages(
    widgets: list[TimelineWidget], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [20.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("mtplx_kernel.engine.timeline.time", clock)
    timeline = Timeline(capacity=2)
    for name in "ab":
        timeline.open(request(name, 1.0, 1.0, 1.0, 2.0, finish_reason="stop"))
    widgets.append(TimelineWidget(timeline))
    now[0] = 30.0
    timeline.open(request("c", 1.0, 1.0, 1.0, 29.5, finish_reason="stop"))
    widgets[0].refresh()
    assert ids(widgets[0].settled) == ["b", "c"]
    assert head(widgets[0])["order"] == ["b", "c"]


def test_hundreds_of_requests_make_bounded_messages(widgets: list[TimelineWidget]) -> None:
    timeline = Timeline()
    for i in range(600):
        window = request(f"r{i}", i / 10, i / 10, i / 10, i / 10 + 5)
        cycles(window, *((i / 10 + n / 40, 3, n % 4) for n in range(200)))
        window.finish_reason = "length" if i < 592 else None
        window.ended = window.ended if i < 592 else None
        timeline.open(window)
    widgets.append(TimelineWidget(timeline))
    assert len(head(widgets[0])["order"]) == 512
    assert len(widgets[0].live) < 60_000
    assert len(widgets[0].settled) < 2_500_000


def test_close_leaves_no_thread_and_no_widget() -> None:
    before, widgets = set(threading.enumerate()), set(_instances)
    widget = TimelineWidget(example())
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "mtplx-view"
    widget.close()
    assert not thread.is_alive()
    assert set(_instances) == widgets
    widget.close()
    assert INTERVAL_S >= 0.1, "ten messages a second are the most"


def test_the_script_and_its_style_need_nothing_else() -> None:
    script = str(TimelineWidget._esm)
    assert "export default" in script
    assert "import " not in script
    assert "http" not in script + str(TimelineWidget._css)


def test_a_view_does_not_keep_its_engine(tiny_folder: Path) -> None:
    engine = mk.load(str(tiny_folder))
    engine.generate([72, 101], max_tokens=2)
    view = shown(engine)
    view.show()
    there = weakref.ref(engine)
    del engine
    gc.collect()
    assert there() is None
    deadline = time.monotonic() + 20
    while view._pump.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not view._pump.running
    assert view.failure is None
