"""The thread behind a view ends with it, whoever ends it and however."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mtplx_kernel.widgets.pump import Pump

PATIENCE_S = 20.0


class View:
    def __init__(self, found: Callable[[], bool] = lambda: True) -> None:
        self.looked = threading.Event()
        self._found = found

    def look(self) -> bool:
        self.looked.set()
        return self._found()


def ended(pump: Pump) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while pump.running and time.monotonic() < deadline:
        time.sleep(0.01)
    return not pump.running


def test_it_looks_until_it_is_stopped() -> None:
    view = View()
    pump = Pump(view.look, 0.001)
    pump.start()
    assert view.looked.wait(PATIENCE_S)
    assert pump.running
    pump.stop()
    pump.stop()
    assert not pump.running
    view.looked.clear()
    assert not view.looked.wait(0.05)


def test_it_ends_with_its_view() -> None:
    view = View()
    pump = Pump(view.look, 0.001)
    pump.start()
    assert view.looked.wait(PATIENCE_S)
    del view
    gc.collect()
    assert ended(pump)
    assert pump.failure is None


def test_a_failure_ends_it_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bool:
        raise ValueError("no luck")

    view = View(fail)
    pump = Pump(view.look, 0.001)
    pump.start()
    assert ended(pump)
    assert pump.failure == "ValueError: no luck"
    assert caplog.messages == ["a view is no longer kept fresh: ValueError: no luck"]


def test_a_view_may_stop_it_from_inside() -> None:
    pumps = list[Pump]()

    def stop() -> bool:
        pumps[0].stop()
        return True

    view = View(stop)
    pumps.append(Pump(view.look, 0.001))
    pumps[0].start()
    assert ended(pumps[0])


def test_one_that_never_began_can_be_stopped() -> None:
    Pump(View().look, 1.0).stop()


@pytest.mark.parametrize(
    ("spent", "changed", "pause"),
    [(0.0003, True, 0.2), (0.0003, False, 0.5), (0.003, True, 1.0), (0.5, True, 3.0)],
)
def test_it_rests_longer_after_much_work_or_none(
    spent: float, changed: bool, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of the test's: a hundredth of all time, but for looks that are long themselves."""
    now = [0.0]
    pauses = list[float]()

    def look() -> bool:
        now[0] += spent
        return changed

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            pauses.append(timeout)
            return len(pauses) > 2

    clock = SimpleNamespace(thread_time=lambda: now[0])
    monkeypatch.setattr("mtplx_kernel.widgets.pump.time", clock)
    view = View(look)
    Pump(view.look, 0.2, 3.0)._run(Stopped())
    assert pauses == [0.2, pytest.approx(pause), pytest.approx(pause)]
