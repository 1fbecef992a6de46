"""How the concurrency benchmark feeds its sides: requests when they come, sides in turn."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.arrivals import Chain, Plan, closed
from benchmarks.batchgen_side import drive
from benchmarks.cells import Cell, run_cell
from benchmarks.measure import BenchmarkFailed
from benchmarks.scheduler_side import Starts
from benchmarks.served import PlanRun
from tests.benchmarks.served import ASKS, served


class Stepper:
    """Takes a prompt in one step, gives every row a token in each later one; a step is a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.log: list[tuple[float, list[int]]] = []
        self._new: list[int] = []
        self._left: dict[int, int] = {}
        self._count = 0

    def insert(self, prompts: list[list[int]], max_tokens: list[int]) -> list[int]:
        self.log.append((self.now, prompts[0]))
        self._count += 1
        self._new.append(self._count)
        self._left[self._count] = max_tokens[0]
        return [self._count]

    def next(self) -> tuple[list[Any], list[Any]]:
        taken, self._new = self._new, []
        self.now += 1.0
        decoded = []
        for uid in [uid for uid in self._left if uid not in taken]:
            self._left[uid] -= 1
            reason = None if self._left[uid] else "length"
            decoded.append(SimpleNamespace(uid=uid, token=uid * 10, finish_reason=reason))
            if reason:
                del self._left[uid]
        return [SimpleNamespace(uid=uid) for uid in taken], decoded

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_batchgen_gets_requests_as_they_come() -> None:
    two = [replace(ask, tokens=2) for ask in ASKS]
    plan: Plan = (Chain(0.5, (two[0], two[1])), Chain(1.0, (two[2],)), Chain(20.0, (two[3],)))
    stepper = Stepper()
    run = drive(plan, stepper, lambda: stepper.now, stepper.sleep)
    # Steps begin at 100.5, 101.5, …; the third chain comes to an idle machine.
    assert stepper.log == [
        (100.5, [10, 11]),
        (101.5, [12, 13]),
        (103.5, [11, 12]),
        (120.0, [13, 14]),
    ]
    assert [s.ask.prompt.name for s in run.served] == ["p", "q", "r", "s"]
    assert [s.asked for s in run.served] == [100.5, 103.5, 101.0, 120.0]
    assert [s.queue_wait_s for s in run.served] == [0.0, 0.0, 0.5, 0.0]
    assert [s.arrivals for s in run.served] == [
        (102.5, 103.5),
        (105.5, 106.5),
        (103.5, 104.5),
        (122.0, 123.0),
    ]
    assert [s.ids for s in run.served] == [(10, 10), (30, 30), (20, 20), (40, 40)]
    assert run.tok_s == 8 / 22.5


class Scripted:
    """A side that notes what it served and gives each request so many tokens."""

    def __init__(self, name: str, log: list[str], tokens: int | None = None) -> None:
        self.name, self._log, self._tokens = name, log, tokens

    def serve(self, plan: Plan) -> PlanRun:
        asks = [ask for chain in plan for ask in chain.asks]
        self._log.append(self.name + "".join(ask.prompt.name for ask in asks))
        return PlanRun(
            tuple(served(*range(1, 1 + (self._tokens or ask.tokens)), ask=ask) for ask in asks)
        )


def test_sides_and_plans_take_turns_after_a_warm_up() -> None:
    log: list[str] = []
    sides = [Scripted(name, log) for name in "AB"]
    cell = Cell("solo", 1, (closed(ASKS[:1], 1), closed(ASKS[1:2], 1)), rounds=3)
    runs = run_cell(cell, sides, lambda: log.append("."))
    assert "".join(log) == "Ap.Bp." + "Ap.Bp." + "Bq.Aq." + "Bp.Ap."
    assert {name: len(of_side) for name, of_side in runs.items()} == {"A": 3, "B": 3}
    assert log.count(".") == cell.runs_of(2)


def test_a_side_that_stops_early_is_an_error() -> None:
    cell = Cell("chat", 1, (closed(ASKS[:1], 1),), rounds=1)
    with pytest.raises(BenchmarkFailed, match="A gave 3 of 4 tokens on p"):
        run_cell(cell, [Scripted("A", [], tokens=3)])


def test_batchgen_gets_a_newcomer_when_its_tokens_have_come() -> None:
    stream, newcomer = replace(ASKS[0], tokens=5), replace(ASKS[1], tokens=2)
    stepper = Stepper()
    plan = (Chain(0.0, (stream,)), Chain(0.0, (newcomer,), after=2))
    run = drive(plan, stepper, lambda: stepper.now, stepper.sleep)
    assert run.served[0].arrivals == (102.0, 103.0, 104.0, 105.0, 106.0)
    assert run.served[1].asked == 103.0
    assert run.served[1].arrivals == (105.0, 106.0)


def test_users_begin_when_their_time_or_their_tokens_have_come() -> None:
    plan = (Chain(0.0, (ASKS[0],)), Chain(0.01, (ASKS[1],)), Chain(0.0, (ASKS[2],), after=3))
    now = time.perf_counter()
    starts = Starts(plan, now)
    assert (starts.wait(0), starts.wait(1)) == (now, now + 0.01)
    assert time.perf_counter() >= now + 0.01
    starts.arrived(2, now + 5)
    starts.arrived(3, now)
    starts.arrived(4, now + 5)
    assert starts.wait(2) == now
    starts.release()
    lost = Starts(plan, now)
    lost.release()
    assert lost.wait(0) == now
    with pytest.raises(BenchmarkFailed, match="first request ended too soon"):
        lost.wait(2)
