"""What the tests of the gate share: a clock, closures, an executor, calls from many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mtplx_kernel.scheduling.gate import (
    Closure,
    HyperAdmissionGate,
    HyperCohortPlan,
    HyperRequestMeta,
    HyperTicket,
)

PATIENCE = 20.0
RESULT = {"text": "ok"}


class Clock:
    """Moves on by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def succeed() -> Mapping[str, Any]:
    return RESULT


def fail() -> Mapping[str, Any]:
    raise ZeroDivisionError("no luck")


@dataclass
class Executor:
    """Plans one width and runs the cohort as a test says."""

    width: int = 2
    run: Callable[[Closure], Mapping[str, Any]] = lambda singleton: singleton()
    planned: list[HyperRequestMeta] = field(default_factory=list)
    ran: list[HyperCohortPlan] = field(default_factory=list)

    def plan(self, request: HyperRequestMeta) -> HyperCohortPlan:
        self.planned.append(request)
        return HyperCohortPlan(self.width, "as the test says")

    def run_cohort(self, plan: HyperCohortPlan, singleton: Closure) -> Mapping[str, Any]:
        self.ran.append(plan)
        return self.run(singleton)


def admitted(gate: HyperAdmissionGate, name: str = "a") -> HyperTicket:
    return gate.admit(request_id=name, prompt_tokens=3)


def served(gate: HyperAdmissionGate, closure: Closure = succeed, name: str = "a") -> Any:
    return gate.bind(admitted(gate, name), closure)()


def widths(gate: HyperAdmissionGate) -> dict[str, int]:
    found: dict[str, int] = gate.snapshot()["width_stats"]["requests_by_width"]
    return found


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Call all at once; each result, or what was raised."""
    outcomes: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            outcomes[i] = calls[i]()
        except Exception as error:
            outcomes[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return outcomes
