"""From one mode to the next: who runs finishes where it is, who waits keeps its time."""

from __future__ import annotations

from mtplx_kernel.scheduling.ar_batch import ARBatchPolicy
from mtplx_kernel.scheduling.mtp_batch import MTPBatchPolicy
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Ran, Wait
from mtplx_kernel.scheduling.relay import Relay
from mtplx_kernel.scheduling.serial import SerialPolicy

OPTIONS = SchedulerOptions(width=4, wait_ms=500)


def relay(*names: str) -> Relay:
    made = Relay(SerialPolicy(Machine()))
    for n, name in enumerate(names):
        made.arrive(Arrival(name, 0), float(n))
    return made


def test_who_runs_finishes_first() -> None:
    line = relay("a", "b", "c")
    assert line.next(3.0) == Decode(("a",))
    line.switch(ARBatchPolicy(OPTIONS, Machine()))
    assert (line.running.name, line.current.name) == ("serial", "ar_batch")
    snapshot = line.snapshot()
    assert snapshot["mode"] == "ar_batch"
    assert snapshot["finishing"]["mode"] == "serial"
    assert snapshot["finishing"]["serial"]["open_requests"] == 1
    assert snapshot["ar_batch"]["open_requests"] == 2
    assert line.next(3.0) == Decode(("a",))
    line.leave("a", 4.0)
    assert line.running is line.current
    assert "finishing" not in line.snapshot()
    quantum = line.next(4.0)
    assert isinstance(quantum, Decode)
    assert quantum.request_ids == ("b", "c")


def test_nobody_waits_anew() -> None:
    line = relay("a", "b")
    line.next(1.0)
    line.switch(MTPBatchPolicy(OPTIONS, Machine()))
    line.leave("a", 1.2)
    assert line.next(1.2) == Wait(1.5)  # b came at 1.0
    line.switch(MTPBatchPolicy(OPTIONS, Machine()))
    assert line.next(1.4) == Wait(1.5)
    assert isinstance(line.next(1.5), Decode)


def test_a_policy_without_requests_is_dropped_at_once() -> None:
    line = relay("a", "b")
    line.next(1.0)
    passed_over = ARBatchPolicy(OPTIONS, Machine())
    line.switch(passed_over)
    line.switch(MTPBatchPolicy(OPTIONS, Machine()))
    assert [line.running.name, line.current.name] == ["serial", "mtp_batch"]
    line.ran(passed_over, Decode(("b",)), Ran(1.0), 2.0)  # nobody asks it any more: no matter
    line.leave("a", 2.0)
    line.leave("nobody", 2.0)
    assert line.running.name == "mtp_batch"


def test_a_request_that_lost_its_caches_is_its_own_policys() -> None:
    line = relay("a")
    line.next(1.0)
    line.switch(ARBatchPolicy(OPTIONS, Machine()))
    line.rewind("a", 7)
    quantum = line.next(2.0)
    assert getattr(quantum, "tokens", None) == (7,)
