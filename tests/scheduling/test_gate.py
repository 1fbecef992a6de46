"""The gate of hyper: tickets that end once, however requests come, run, fail and are released."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.scheduling.gate import (
    HYPER_ADMISSION_CAP,
    Closure,
    HyperAdmissionGate,
    HyperTicket,
)
from tests.scheduling.gating import (
    RESULT,
    Clock,
    Executor,
    admitted,
    fail,
    in_threads,
    served,
    succeed,
    widths,
)


def test_a_request_goes_through_the_gate() -> None:
    gate = HyperAdmissionGate(Clock())
    ticket = gate.admit(request_id="req-42", prompt_tokens=128)  # at 1 s
    assert (ticket.request_id, ticket.prompt_tokens, ticket.state) == ("req-42", 128, "queued")
    seen: list[Any] = []

    def closure() -> Mapping[str, Any]:
        seen.append((ticket.state, gate.snapshot()["active"], gate.snapshot()["queue_depth"]))
        return RESULT

    bound = gate.bind(ticket, closure, generation_mode="mtp")
    assert seen == []
    assert bound() is RESULT  # from 2 s to 3 s
    assert seen == [("active", 1, 0)]
    assert ticket.state == "done"
    assert gate.snapshot() == {
        "stage": "h0",
        "admission_cap": 1,
        "width": 1,
        "passthrough": "serial_b1",
        "width_executor_installed": False,
        "active": 0,
        "queue_depth": 0,
        "admitted_total": 1,
        "completed_total": 1,
        "failed_total": 0,
        "abandoned_total": 0,
        "queue_wait_s": {"count": 1, "mean": 1.0, "p50": 1.0, "p95": 1.0, "max": 1.0},
        "run_s": {"count": 1, "mean": 1.0, "p50": 1.0, "p95": 1.0, "max": 1.0},
        "width_stats": {
            "requests_by_width": {"1": 1},
            "self_spec_rows_launched": 0,
            "self_spec_rows_committed": 0,
            "fork_attempts": 0,
            "fork_wins": 0,
        },
    }


def test_an_unused_gate_makes_up_no_times() -> None:
    snapshot = HyperAdmissionGate().snapshot()
    assert snapshot["queue_wait_s"] == snapshot["run_s"] == {"count": 0}
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert HYPER_ADMISSION_CAP == 1


def test_times_are_summed_up_over_the_latest_and_counted_over_all() -> None:
    gate = HyperAdmissionGate(Clock())
    for n in range(300):
        tickets = [admitted(gate, f"{n}-{i}") for i in range(2)]
        for ticket in tickets:
            gate.bind(ticket, succeed)()
    waits = gate.snapshot()["queue_wait_s"]
    # Of each two the first waits for 2 readings of the clock, the second for 3.
    assert waits == {"count": 600, "mean": 2.5, "p50": 3.0, "p95": 3.0, "max": 3.0}


def test_a_bound_request_runs_at_most_once() -> None:
    gate = HyperAdmissionGate()
    ran: list[int] = []
    ticket = admitted(gate)
    bound = gate.bind(ticket, lambda: ran.append(1) or RESULT)
    with pytest.raises(RuntimeError, match=r"^request 'a' is bound already$"):
        gate.bind(ticket, succeed)
    bound()
    with pytest.raises(
        RuntimeError, match=r"^request 'a' is done: only one that is queued can run"
    ):
        bound()
    with pytest.raises(RuntimeError, match=r"^request 'a' is done"):
        gate.bind(ticket, succeed)
    assert ran == [1]
    assert gate.snapshot()["completed_total"] == 1


def test_many_threads_that_call_one_bound_run_it_once() -> None:
    gate = HyperAdmissionGate()
    ran: list[int] = []
    bound = gate.bind(admitted(gate), lambda: ran.append(1) or RESULT)
    outcomes = in_threads([bound] * 8)
    assert ran == [1]
    assert Counter(type(o) for o in outcomes) == {dict: 1, RuntimeError: 7}


def test_a_failure_is_raised_as_it_is_and_counted() -> None:
    for error in (ZeroDivisionError("x"), KeyboardInterrupt(), SystemExit(3)):

        def closure(error: BaseException = error) -> Mapping[str, Any]:
            raise error

        gate = HyperAdmissionGate()
        ticket = admitted(gate)
        bound = gate.bind(ticket, closure)
        with pytest.raises(type(error)) as caught:
            bound()
        assert caught.value is error
        assert ticket.state == "failed"
        snapshot = gate.snapshot()
        assert (snapshot["failed_total"], snapshot["completed_total"], snapshot["active"]) == (
            1,
            0,
            0,
        )
        assert snapshot["run_s"]["count"] == 1
        assert widths(gate) == {}
        assert served(gate, name="next") is RESULT


def test_release_abandons_a_ticket_that_waits_and_no_other() -> None:
    gate = HyperAdmissionGate()
    waiting = admitted(gate, "waiting")
    bound = gate.bind(waiting, succeed)
    gate.release(waiting)
    gate.release(waiting)
    assert waiting.state == "abandoned"
    with pytest.raises(RuntimeError, match=r"^request 'waiting' is abandoned"):
        bound()
    ticket = admitted(gate, "runs")
    gate.bind(ticket, lambda: gate.release(ticket) or RESULT)()
    gate.release(ticket)
    assert ticket.state == "done"
    snapshot = gate.snapshot()
    assert snapshot["abandoned_total"] == 1
    assert snapshot["completed_total"] == 1
    assert snapshot["queue_wait_s"]["count"] == 1  # who never ran has waited for nothing


def test_what_cannot_be_is_refused_in_one_line() -> None:
    gate, other = HyperAdmissionGate(), HyperAdmissionGate()
    ticket = admitted(gate)
    with pytest.raises(ValueError, match=r"^prompt_tokens is -1; it must be 0 or more$"):
        gate.admit(request_id="b", prompt_tokens=-1)
    with pytest.raises(ValueError, match=r"^generation_mode is 'hyper'; allowed: mtp, ar$"):
        gate.bind(ticket, succeed, generation_mode="hyper")
    for call in (lambda: other.bind(ticket, succeed), lambda: other.release(ticket)):
        with pytest.raises(ValueError, match=r"^request 'a' was admitted by another gate$"):
            call()
    assert gate.snapshot()["admitted_total"] == 1
    assert gate.bind(ticket, succeed, generation_mode="ar")() is RESULT


def test_a_request_inside_another_is_refused_and_keeps_its_place() -> None:
    gate = HyperAdmissionGate()
    outer, inner = admitted(gate, "outer"), admitted(gate, "inner")
    bound = gate.bind(inner, succeed)
    (refused,) = in_threads([gate.bind(outer, bound)])
    assert str(refused) == "request 'inner' cannot run inside request 'outer'"
    assert (outer.state, inner.state) == ("failed", "queued")
    assert bound() is RESULT


STEPS = st.lists(
    st.tuples(st.just("admit"), st.just(0))
    | st.tuples(st.sampled_from(["run", "fail", "wide", "wide_fail"]), st.just(0))
    | st.tuples(st.just("release"), st.integers(0, 12)),
    max_size=50,
)


def play(gate: HyperAdmissionGate, steps: list[tuple[str, int]]) -> None:
    """Drive a gate, and check it against plain lists and counts after each step."""
    tickets: list[HyperTicket] = []
    queue: list[HyperTicket] = []
    counts: Counter[str] = Counter()
    by_width: Counter[str] = Counter()
    for step, number in steps:
        if step == "admit":
            tickets.append(admitted(gate, str(len(tickets))))
            queue.append(tickets[-1])
        elif step == "release" and number < len(tickets):
            ticket = tickets[number]
            gate.release(ticket)
            if ticket in queue:
                queue.remove(ticket)
                counts["abandoned"] += 1
        elif step != "release" and queue:
            ticket = queue.pop(0)
            wide = step.startswith("wide")
            if wide:
                gate.install_width_executor(Executor(3, recording(gate)))
            bound = gate.bind(ticket, fail if step.endswith("fail") else succeed)
            if step.endswith("fail"):
                with pytest.raises(ZeroDivisionError):
                    bound()
                counts["failed"] += 1
            else:
                assert bound() is RESULT
                counts["completed"] += 1
                by_width["2" if wide else "1"] += 1
            gate.clear_width_executor()
        snapshot = gate.snapshot()
        assert snapshot["admitted_total"] == len(tickets)
        assert snapshot["queue_depth"] == len(queue)
        assert snapshot["active"] == 0
        assert snapshot["width"] == 1
        for name in ("completed", "failed", "abandoned"):
            assert snapshot[f"{name}_total"] == counts[name]
        assert snapshot["queue_wait_s"]["count"] == counts["completed"] + counts["failed"]
        assert snapshot["run_s"]["count"] == counts["completed"] + counts["failed"]
        assert widths(gate) == by_width
        assert snapshot["admitted_total"] == sum(counts.values()) + len(queue)


def recording(gate: HyperAdmissionGate) -> Callable[[Closure], Mapping[str, Any]]:
    """An executor's run that also says how wide it was: 2, where 3 was planned."""

    def run(singleton: Closure) -> Mapping[str, Any]:
        assert gate.snapshot()["width"] == 3
        gate.record_cohort_width(2)
        assert gate.snapshot()["width"] == 2
        return singleton()

    return run


@given(steps=STEPS)
@settings(max_examples=200)
def test_every_ticket_ends_once_and_the_counts_add_up(steps: list[tuple[str, int]]) -> None:
    play(HyperAdmissionGate(Clock()), steps)


class CountsTwice(HyperAdmissionGate):
    """Broken: a recorded width is counted at once, and again when the request is done."""

    def record_cohort_width(self, width: int) -> None:
        super().record_cohort_width(width)
        self._widths[width] += 1


class AbandonsTwice(HyperAdmissionGate):
    """Broken: releasing a ticket that has been released counts again."""

    def release(self, ticket: HyperTicket) -> None:
        if ticket.state == "abandoned":
            self._totals[ticket.state] += 1
        super().release(ticket)


class StaysWide(HyperAdmissionGate):
    """Broken: a failed request leaves its run, and so its width, behind."""

    def _end(self, run: Any, state: Any) -> None:
        super()._end(run, state)
        if state == "failed":
            self._run = run


@pytest.mark.parametrize("broken", [CountsTwice, AbandonsTwice, StaysWide])
def test_broken_accounts_would_be_seen(broken: type[HyperAdmissionGate]) -> None:
    steps = [("admit", 0)] * 4 + [("release", 3)] * 2 + [("wide", 0), ("wide_fail", 0), ("run", 0)]
    play(HyperAdmissionGate(), steps)
    with pytest.raises(AssertionError):
        play(broken(), steps)
