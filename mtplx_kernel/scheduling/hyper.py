"""hyper: one request at a time, first in, first out, each run whole through the admission gate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mtplx_kernel.scheduling.gate import (
    Closure,
    HyperAdmissionGate,
    HyperCohortPlan,
    HyperRequestMeta,
    HyperTicket,
    HyperWidthExecutor,
)
from mtplx_kernel.scheduling.policy import Arrival, Machine, Quantum, Ran, Serve


class HyperPolicy:
    """Serves the queue's head from its start to its end; no lanes, no waits, nothing to tune.

    Parameters
    ----------
    machine
        Not asked: a request is served whatever the machine.
    clock
        Seconds of one monotonic clock, for the gate.

    Attributes
    ----------
    gate
        Where a request is admitted when it arrives and released when it leaves. Whoever serves a
        request binds its ticket there.
    """

    name = "hyper"
    rule = "singleton"
    drafts = True

    def __init__(self, machine: Machine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.gate = HyperAdmissionGate(clock)
        self._open: dict[str, tuple[Arrival, HyperTicket]] = {}
        self._current: str | None = None
        self._closed = False

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Queue behind all others."""
        name = arrival.request_id
        ticket = self.gate.admit(request_id=name, prompt_tokens=arrival.prefill)
        self._open[name] = arrival, ticket

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request, wherever in the queue it is."""
        entry = self._open.pop(request_id, None)
        if entry is not None:
            self.gate.release(entry[1])
        if request_id == self._current:
            self._current = None

    def rewind(self, request_id: str, prefill: int) -> None:
        """Nothing to do: a request is served whole, whatever it has to feed."""

    def next(self, now: float) -> Quantum | None:
        """Serve the oldest request."""
        if self._current is None and not self._closed:
            self._current = next(iter(self._open), None)
        return None if self._current is None else Serve(self._current)

    def ticket(self, request_id: str) -> HyperTicket:
        """The ticket of an open request."""
        return self._open[request_id][1]

    def bind(self, request_id: str, closure: Closure, generation_mode: str) -> Closure:
        """What runs an open request through the gate, once."""
        ticket = self.ticket(request_id)
        return self.gate.bind(ticket, closure, generation_mode=generation_mode)

    def ran(self, quantum: Quantum, ran: Ran, now: float) -> None:
        """Nothing to learn: a request that was served has left."""

    def withdraw(self) -> list[Arrival]:
        """Hand back all but the request that runs."""
        self._closed = True
        waiting = [name for name in self._open if name != self._current]
        arrivals = [self._open[name][0] for name in waiting]
        for name in waiting:
            self.gate.release(self._open.pop(name)[1])
        return arrivals

    def snapshot(self) -> dict[str, Any]:
        """What the gate counts."""
        return self.gate.snapshot()


class HyperWidths:
    """What others may do to the gate of a running engine: everything but stand in its queue.

    Parameters
    ----------
    gate
        The engine's.
    """

    def __init__(self, gate: HyperAdmissionGate) -> None:
        self._gate = gate

    def install_width_executor(self, executor: HyperWidthExecutor) -> None:
        """Let an executor widen the requests to come; see `HyperAdmissionGate`."""
        self._gate.install_width_executor(executor)

    def clear_width_executor(self) -> None:
        """Serve the requests to come alone again."""
        self._gate.clear_width_executor()

    @property
    def width_executor(self) -> HyperWidthExecutor | None:
        """What is installed."""
        return self._gate.width_executor

    def plan_cohort(self, request: HyperRequestMeta) -> HyperCohortPlan:
        """What the installed executor plans for a request."""
        return self._gate.plan_cohort(request)

    def snapshot(self) -> dict[str, Any]:
        """What the gate counts."""
        return self._gate.snapshot()
