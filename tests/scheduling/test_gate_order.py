"""The gate over threads: requests run one at a time, in the order of admission."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest

from mtplx_kernel.scheduling.gate import (
    Closure,
    HyperAdmissionGate,
    HyperTicket,
)
from tests.scheduling.gating import (
    PATIENCE,
    RESULT,
    admitted,
    fail,
    in_threads,
    succeed,
)


class Watch:
    """Notes in which order requests ran, and how many at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def closure(self, name: str, *, fails: bool = False) -> Closure:
        def run() -> Mapping[str, Any]:
            with self._lock:
                self.order.append(name)
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            threading.Event().wait(0.001)  # let others in, if they can come in
            with self._lock:
                self.at_once -= 1
            return fail() if fails else {"text": name}

        return run


def started_in(order: tuple[int, ...], gate: HyperAdmissionGate) -> Watch:
    """Requests 0, 1, ... run in threads that begin in another order than they were admitted in."""
    watch = Watch()
    tickets = [admitted(gate, str(i)) for i in range(len(order))]
    calls = [gate.bind(tickets[i], watch.closure(str(i), fails=i == 1)) for i in order]
    outcomes = in_threads(list(calls))
    for i, outcome in zip(order, outcomes, strict=True):
        assert isinstance(outcome, ZeroDivisionError) if i == 1 else outcome == {"text": str(i)}
    return watch


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_requests_run_in_the_order_of_admission_one_at_a_time(order: tuple[int, ...]) -> None:
    gate = HyperAdmissionGate()
    watch = started_in(order, gate)
    assert watch.order == ["0", "1", "2", "3"]
    assert watch.most == 1
    snapshot = gate.snapshot()
    assert (snapshot["completed_total"], snapshot["failed_total"]) == (3, 1)


class Unordered(HyperAdmissionGate):
    """Broken: whoever comes first runs, and takes the ticket of another out of the queue."""

    def _next_is(self, ticket: HyperTicket) -> bool:
        return self._run is None


class Uncapped(HyperAdmissionGate):
    """Broken: does not wait for the one that runs."""

    def _next_is(self, ticket: HyperTicket) -> bool:
        return self._queue[0] is ticket


def test_a_gate_without_order_would_be_seen() -> None:
    assert started_in((3, 2, 1, 0), Unordered()).order != ["0", "1", "2", "3"]


def test_a_gate_without_a_cap_would_be_seen() -> None:
    gate, entered, met = Uncapped(), threading.Event(), []

    def first() -> Mapping[str, Any]:
        met.append(entered.wait(PATIENCE))
        return RESULT

    def second() -> Mapping[str, Any]:
        entered.set()
        return RESULT

    tickets = [admitted(gate, name) for name in "ab"]
    in_threads([gate.bind(t, run) for t, run in zip(tickets, (first, second), strict=True)])
    assert met == [True]


def test_who_waits_for_a_turn_is_let_go_by_a_release() -> None:
    gate = HyperAdmissionGate()
    first, second, third = (admitted(gate, name) for name in "abc")
    waits = threading.Thread
    outcomes: list[Any] = []
    bound = gate.bind(second, succeed)

    def run() -> None:
        try:
            bound()
        except RuntimeError as error:
            outcomes.append(str(error))

    thread = waits(target=run, daemon=True)
    thread.start()
    gate.release(second)
    thread.join(PATIENCE)
    assert outcomes == ["request 'b' is abandoned: only one that is queued can run"]
    gate.release(first)
    assert gate.bind(third, succeed)() is RESULT
