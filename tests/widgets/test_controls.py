"""The controls show what is in force, pass on what the user changes, and leave nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import comm
import pytest
from ipywidgets.widgets.widget import _instances

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.widgets.controls import BY_ITSELF, Controls
from mtplx_kernel.widgets.desk import InForce, OpenRequest, Setting, bundle
from mtplx_kernel.widgets.queue_buttons import AT_ONCE, BUTTONS, QueueButtons

PATIENCE_S = 20.0
LOADED = InForce(
    model="tiny",
    mode="mtp",
    scheduler="cooperative",
    settings={"width": 8, "itl_ms": 200.0, "ttft_ms": 2000.0},
    sampling={"max_tokens": 256, "temperature": 0.0, "top_p": 1.0},
)


class ScriptedDesk:
    """Keeps what it was told, and does it, or refuses."""

    modes = ("mtp", "ar")
    schedulers = ("serial", "cooperative", "mtp_cohort_experimental")
    deepest = 16
    experimental = "mtp_cohort_experimental"

    def __init__(self, now: InForce = LOADED) -> None:
        self.now = now
        self.told: list[tuple[Any, ...]] = []
        self.refusal: Exception | None = None
        self.looked = 0
        self.looks = threading.Semaphore(0)

    def models(self) -> tuple[str, ...]:
        return ("tiny", "large")

    def read(self) -> InForce:
        self.looked += 1
        self.looks.release()
        return self.now

    def _do(self, *told: Any, **changed: Any) -> None:
        self.told.append(told)
        if self.refusal is not None:
            raise self.refusal
        self.now = replace(self.now, **changed)

    def load(self, name: str) -> None:
        self._do("load", name, model=name)

    def set_mode(self, mode: str) -> None:
        self._do("mode", mode, mode=mode)

    def set_scheduler(self, name: str, *, opt_in: bool) -> None:
        self._do("scheduler", name, opt_in, scheduler=name, settings={})

    def set_setting(self, name: str, value: Setting) -> None:
        self._do("setting", name, value, settings={**self.now.settings, name: value})

    def set_depth(self, depth: int | None) -> None:
        self._do("depth", depth, depth=depth)

    def set_sampling(self, name: str, value: Setting) -> None:
        self._do("sampling", name, value, sampling={**self.now.sampling, name: value})

    def serve(self, on: bool) -> None:
        self._do("serve", on, endpoint="http://127.0.0.1:1" if on else None)

    def cancel(self, request_id: str | None) -> None:
        self._do("cancel", request_id)


class Bench:
    """Controls on a scripted desk."""

    def __init__(self, now: InForce = LOADED, look_s: float = 0.01) -> None:
        self.desk = ScriptedDesk(now)
        self.controls = Controls(self.desk, look_s)

    def look(self) -> None:
        """Wait until two looks more have begun, so that one of them has ended."""
        while self.desk.looks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self.desk.looks.acquire(timeout=PATIENCE_S)

    def fields(self) -> dict[str, Any]:
        """The values of all fields that are shown, by description."""
        found: dict[str, Any] = {}

        def walk(widget: Any) -> None:
            for child in getattr(widget, "children", ()):
                walk(child)
            if hasattr(widget, "description") and hasattr(widget, "value"):
                found[widget.description] = widget.value

        walk(self.controls.box)
        found.pop("", None)
        return found


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.controls.close()


def test_all_that_is_in_force_is_shown(bench: Bench) -> None:
    assert bench.fields() == {
        "Model": "tiny",
        "Mode": "mtp",
        "Depth": BY_ITSELF,
        "serve the endpoint": False,
        "Scheduler": "cooperative",
        "allow mtp_cohort_experimental": False,
        "width": 8,
        "itl ms": 200.0,
        "ttft ms": 2000.0,
        "max tokens": 256,
        "temperature": 0.0,
        "top p": 1.0,
    }
    assert bench.controls.line.value == (
        '<div role="status" aria-live="polite">0 running, 0 waiting; no endpoint</div>'
    )


def test_they_follow_what_others_change(bench: Bench) -> None:
    bench.desk.now = replace(
        LOADED,
        model="of /my/folder",
        mode="ar",
        mode_reason="it cannot <draft>",
        scheduler="serial",
        settings={},
        depth=3,
        endpoint="http://127.0.0.1:8000",
        sampling={**LOADED.sampling, "temperature": 0.7},
    )
    bench.look()
    fields = bench.fields()
    assert [fields[n] for n in ("Model", "Mode", "Scheduler", "Depth", "serve the endpoint")] == [
        "of /my/folder",
        "ar",
        "serial",
        "3",
        True,
    ]
    assert "width" not in fields
    assert fields["temperature"] == 0.7
    line = "0 running, 0 waiting; endpoint http://127.0.0.1:8000; it cannot &lt;draft&gt;"
    assert line in bench.controls.line.value
    assert bench.desk.told == []  # what they follow, they do not pass on


def test_what_the_user_changes_is_done(bench: Bench) -> None:
    controls = bench.controls
    settings = {field.description: field for field in controls._of_scheduler.children}
    sampler = {field.description: field for field in controls._of_sampler.children}
    changes = [
        (controls.mode, "ar"),
        (controls.depth, "4"),
        (controls.depth, BY_ITSELF),
        (settings["width"], 2),
        (settings["itl ms"], 50.5),
        (sampler["temperature"], 0.5),
        (controls.endpoint, True),
        (controls.endpoint, False),
        (controls.model, "large"),
    ]
    for field, value in changes:
        field.value = value
        bench.look()
        assert field.value == value
    assert bench.desk.told == [
        ("mode", "ar"),
        ("depth", 4),
        ("depth", None),
        ("setting", "width", 2),
        ("setting", "itl_ms", 50.5),
        ("sampling", "temperature", 0.5),
        ("serve", True),
        ("serve", False),
        ("load", "large"),
    ]


def test_the_experimental_scheduler_needs_the_box_ticked(bench: Bench) -> None:
    controls = bench.controls
    controls.scheduler.value = "mtp_cohort_experimental"
    bench.look()
    controls.scheduler.value = "serial"
    bench.look()
    controls.opt_in.value = True
    controls.scheduler.value = "mtp_cohort_experimental"
    bench.look()
    assert bench.desk.told == [
        ("scheduler", "mtp_cohort_experimental", False),
        ("scheduler", "serial", True),
        ("scheduler", "mtp_cohort_experimental", True),
    ]


def test_a_refusal_is_said_and_what_is_in_force_stands_again(bench: Bench) -> None:
    bench.desk.refusal = InvalidRequest("temperature must be\nfrom 0 to 100, not <-1>")
    field = bench.controls._sampling["temperature"]
    field.value = -1.0
    eventually(lambda: "temperature must be" in bench.controls.line.value)
    bench.look()
    assert field.value == 0.0
    said = "<b>temperature must be from 0 to 100, not &lt;-1&gt;</b>"
    assert said in bench.controls.line.value
    bench.desk.refusal = None
    field.value = 1.5
    eventually(lambda: "<b>" not in bench.controls.line.value)
    assert bench.desk.now.sampling["temperature"] == 1.5


def test_a_fault_of_ours_is_said_too_and_ends_nothing(bench: Bench) -> None:
    bench.desk.refusal = ZeroDivisionError()
    bench.controls.mode.value = "ar"
    eventually(lambda: "<b>ZeroDivisionError</b>" in bench.controls.line.value)
    bench.look()
    bench.desk.refusal = None
    bench.controls.mode.value = "ar"
    bench.look()
    assert bench.desk.now.mode == "ar"


def test_without_a_model_there_is_one_to_choose() -> None:
    bench = Bench(InForce(sampling={"temperature": 0.0}))
    try:
        assert bench.controls.model.options == ("tiny", "large", "no model is loaded")
        assert bench.controls.model.value == "no model is loaded"
        assert bench.controls.scheduler.disabled
        bench.controls.model.value = "large"
        bench.look()
        assert bench.desk.told == [("load", "large")]
    finally:
        bench.controls.close()


def test_close_leaves_no_thread_and_no_widget() -> None:
    threads, widgets = set(threading.enumerate()), set(_instances)
    bench = Bench()
    bench.desk.now = replace(LOADED, scheduler="serial", settings={})
    bench.look()
    assert set(_instances) > widgets
    bench.controls.close()
    bench.controls.close()
    assert set(threading.enumerate()) == threads
    assert set(_instances) == widgets


def test_close_waits_for_what_is_being_done() -> None:
    bench = Bench()
    begun, go_on = threading.Event(), threading.Event()

    def load(name: str) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        bench.desk.told.append(("load", name))

    bench.desk.load = load  # type: ignore[method-assign]
    bench.controls.model.value = "large"
    assert begun.wait(PATIENCE_S)
    assert "<b>Loading large ...</b>" in bench.controls.line.value
    closing = threading.Thread(target=bench.controls.close)
    closing.start()
    go_on.set()
    closing.join(PATIENCE_S)
    assert bench.desk.told == [("load", "large")]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the messages that widgets send."""
    sent: list[str] = []

    def publish(self: Any, msg_type: str, *_: Any, **__: Any) -> None:
        sent.append(msg_type)

    monkeypatch.setattr(comm.DummyComm, "publish_msg", publish)
    return sent


def test_nothing_is_sent_while_nothing_changes(messages: list[str]) -> None:
    bench = Bench()
    try:
        messages.clear()
        for _ in range(5):
            bench.look()
        assert bench.desk.looked > 10
        assert messages == []
        bench.desk.now = replace(LOADED, mode="ar")
        bench.look()
        assert messages == ["comm_msg"]
    finally:
        bench.controls.close()


def requests(*ids: int, doing: str = "decoding") -> tuple[OpenRequest, ...]:
    return tuple(OpenRequest(request_id=f"req-{n}", doing=doing) for n in ids)


def names(buttons: QueueButtons) -> list[str]:
    return [widget.description for widget in buttons.shown]


def test_each_button_cancels_the_request_that_it_names() -> None:
    cancelled: list[str | None] = []
    buttons = QueueButtons(cancelled.append)
    buttons.show(requests(1, 2, doing="waiting"))
    assert names(buttons) == ["Cancel req-1 (waiting)", "Cancel req-2 (waiting)"]
    assert not buttons.all.disabled
    buttons.shown[1].click()
    buttons.all.click()
    assert cancelled == ["req-2", None]
    buttons.show(requests(1, 2))
    assert names(buttons) == ["Cancel req-1 (decoding)", "Cancel req-2 (decoding)"]
    buttons.show(())
    assert (names(buttons), buttons.all.disabled) == ([], True)
    buttons.close()


def test_a_late_click_cancels_nothing() -> None:
    cancelled: list[str | None] = []
    buttons = QueueButtons(cancelled.append)
    buttons.show(requests(1, 2, 3))
    buttons.show(requests(4, 5, 6, 7, 8, 9, 10, 11))
    (first, *_) = (button.widget for button in buttons._buttons)
    first.click()  # on its way when request 1 ended
    assert cancelled == []
    buttons.show(requests(4, 5, 6, 7, 8, 9, 10, 11))
    buttons.show(requests(4, 5, 6, 7, 8, 9, 10, 11))
    assert len(names(buttons)) == BUTTONS
    buttons.close()


def test_hundreds_of_requests_send_no_more_than_a_few_messages_a_look(
    messages: list[str],
) -> None:
    buttons = QueueButtons(lambda request_id: None)
    most = 0
    for n in range(200):
        messages.clear()
        buttons.show(requests(*range(n * 7, n * 7 + 300), doing=f"step {n}"))
        most = max(most, len(messages))
    assert 0 < most <= AT_ONCE + 2  # and which are shown, and whether there are any
    assert len(names(buttons)) <= BUTTONS
    buttons.close()


def test_what_stands_in_the_notebook_afterwards() -> None:
    assert bundle(LOADED)["text/plain"].splitlines() == [
        "Model:     tiny",
        "Mode:      mtp",
        "Scheduler: cooperative (width 8, itl_ms 200, ttft_ms 2000)",
        "Depth:     the engine's choice",
        "Sampler:   max_tokens 256, temperature 0, top_p 1",
        "Endpoint:  off",
        "Queue:     0 running, 0 waiting",
    ]
    told = bundle(replace(LOADED, model="<b>", depth=0, requests=requests(1, doing="waiting")))
    assert '<td style="text-align:left">&lt;b&gt;</td>' in told["text/html"]
    assert "Depth:     0\n" in told["text/plain"]
    assert told["text/plain"].endswith("Queue:     0 running, 1 waiting")
    assert bundle(InForce())["text/plain"].splitlines()[0] == "Model:    no model is loaded"
