"""The acceptance view, live and at rest: the same charts, sent only when they have changed."""

from __future__ import annotations

import base64
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mtplx_kernel.engine.timeline import Timeline
from mtplx_kernel.widgets import acceptance
from mtplx_kernel.widgets.acceptance import AcceptanceWidget, shown
from mtplx_kernel.widgets.acceptance_pages import Followed, as_text, bundle
from mtplx_kernel.widgets.charts import charts
from tests.widgets.test_tally import record, window

SOON_S = 20.0


class Engine:
    """What the view asks of an engine."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.closed = False
        self.ms = 20.0
        self.timeline.open(window("req-1", (1.0, 2, 1, "head"), (1.1, 2, 2, "head")))

    def status(self) -> dict[str, Any]:
        return {"verify_ms": {"1": self.ms, "5": 40.0}, "depth": {"default": 2}}


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def views() -> int:
    """How many threads keep a view fresh."""
    return sum(thread.name == "mtplx-view" for thread in threading.enumerate())


@pytest.fixture
def engine() -> Any:
    return Engine()


@pytest.fixture
def widget(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[AcceptanceWidget]:
    monkeypatch.setattr(acceptance, "INTERVAL_S", 0.01)
    made = AcceptanceWidget(Followed(engine))
    yield made
    made.close()


def state(widget: AcceptanceWidget) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(widget.state)
    return found


def test_the_live_view_gets_the_charts_of_the_picture(
    widget: AcceptanceWidget, engine: Any
) -> None:
    view = Followed(engine).view()
    assert state(widget) == {
        "summary": "1 request, 5 tokens in 2 cycles (2.50 a cycle), 3 of 4 drafts right (75%)",
        "charts": json.loads(json.dumps([chart.as_data() for chart in charts(view)])),
    }


def test_it_follows_by_itself_until_it_is_closed(widget: AcceptanceWidget, engine: Any) -> None:
    record(engine.timeline.windows()[0], (1.2, 2, 0, "lookup"))
    until(lambda: "3 of 6 drafts right" in widget.state)
    before = views()
    widget.close()
    assert views() == before - 1
    assert widget.failure is None


def test_nothing_is_sent_where_nothing_changed(widget: AcceptanceWidget) -> None:
    sent: list[object] = []
    widget.observe(lambda change: sent.append(change["new"]), "state")
    assert widget.refresh() is False
    assert sent == []


def test_a_failure_ends_the_following_and_is_told(
    widget: AcceptanceWidget, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("no status")

    monkeypatch.setattr(engine, "status", broken)
    until(lambda: widget.failure is not None)
    assert widget.failure == "RuntimeError: no status"


def test_what_a_closed_engine_had_measured_stays(engine: Any) -> None:
    followed = Followed(engine)
    engine.closed = True
    engine.ms = 0.0
    assert followed.gone
    assert followed.view().costs[0].ms == 20.0


def test_a_view_does_not_keep_its_engine() -> None:
    engine: Any = Engine()
    followed = Followed(engine)
    del engine
    gc.collect()
    assert followed.gone
    assert followed.view().cycles == 2


def test_at_rest_there_are_picture_page_and_text(engine: Any) -> None:
    view = Followed(engine).view()
    found = bundle(view)
    assert found.keys() == {"image/png", "text/html", "text/plain"}
    assert base64.b64decode(found["image/png"]).startswith(b"\x89PNG")
    page = found["text/html"]
    assert f"base64,{found['image/png']}" in page
    assert "Drafts right, by depth. depth 1: 2 of 2 right (100%)" in page
    assert '<th scope="row">by head</th><td>2</td><td>4</td><td>3</td><td>75%</td>' in page
    assert found["text/plain"] == as_text(view)


def test_text_has_all_numbers(engine: Any) -> None:
    assert as_text(Followed(engine).view()).splitlines() == [
        "1 request, 5 tokens in 2 cycles (2.50 a cycle), 3 of 4 drafts right (75%)",
        " drafts  cycles  drafted  right  share",
        "depth 1       2        2      2   100%",
        "depth 2       2        2      1    50%",
        "by head       2        4      3    75%",
        "depth in force: 2",
        "drafts a cycle in mode mtp: 2.00 on average",
        "a forward of one row takes 20 ms for 1, 40 ms for 5 tokens, 30 ms as chosen",
    ]


def test_an_output_is_live_while_something_runs(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, Any]] = []

    class Handle:
        def display(self, what: Any, **_: Any) -> None:
            sent.append(("display", what))

        def update(self, what: Any, **_: Any) -> None:
            sent.append(("update", what))

    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    output = shown(engine, busy=lambda: True)
    output.show()
    assert output.live
    engine.closed = True
    until(lambda: len(sent) == 2)
    assert isinstance(sent[0][1], AcceptanceWidget)
    assert sent[1][1].keys() == {"image/png", "text/html", "text/plain"}
    until(lambda: not output.live)
