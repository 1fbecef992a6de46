"""The gate of hyper: one request at a time, in order of admission, and the seam for more rows."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from mtplx_kernel.scheduling.times import Times

HYPER_ADMISSION_CAP = 1
STAGE = "h0"
PASSTHROUGH = "serial_b1"
FIGURES = (
    "self_spec_rows_launched",
    "self_spec_rows_committed",
    "fork_attempts",
    "fork_wins",
)
"""What a width executor may add to a request's result; the gate sums it up."""
WIDTH = "cohort_width"
"""So may it, where its cohort was not as wide as planned: by this the request is counted."""

Closure = Callable[[], Mapping[str, Any]]
"""Runs a whole request and returns its result."""


def _check_width(width: int) -> None:
    if width < 1:
        raise ValueError(f"width is {width}; it must be 1 or more")


class TicketState(StrEnum):
    """Where a ticket stands; the last three are final."""

    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"


@dataclass(eq=False, slots=True)
class HyperTicket:
    """A request's place in the queue. Only its gate changes it."""

    request_id: str
    prompt_tokens: int
    admitted: float
    state: TicketState = TicketState.QUEUED
    bound: bool = False


@dataclass(frozen=True, slots=True)
class HyperRequestMeta:
    """What a width executor knows of a request when it plans."""

    request_id: str
    prompt_tokens: int
    generation_mode: str


@dataclass(frozen=True, slots=True)
class HyperCohortPlan:
    """How many rows a request's forwards may have, and why.

    Raises
    ------
    ValueError
        If the width is below 1.
    """

    width: int
    reason: str

    def __post_init__(self) -> None:
        _check_width(self.width)


NO_EXECUTOR = HyperCohortPlan(1, "no width executor is installed")


class HyperWidthExecutor(Protocol):
    """Gives one request forwards of several rows, which it speculates for itself."""

    def plan(self, request: HyperRequestMeta) -> HyperCohortPlan:
        """Decide the width; at 1 the gate calls the request's closure itself."""
        ...

    def run_cohort(self, plan: HyperCohortPlan, singleton: Closure) -> Mapping[str, Any]:
        """Call `singleton` once for the primary row; return its result, which may be extended."""
        ...


@dataclass(eq=False, slots=True)
class _Run:
    """The active request, the executor that was installed when it began, and its live width."""

    ticket: HyperTicket
    meta: HyperRequestMeta
    executor: HyperWidthExecutor | None
    started: float
    thread: int
    width: int = 1


class HyperAdmissionGate:
    """Lets one request run at a time, in the order of admission; counts what came of each.

    Any thread may call it. A request's closure runs in the thread that calls what `bind` gave.

    Parameters
    ----------
    clock
        Seconds of one monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[HyperTicket] = deque()
        self._run: _Run | None = None
        self._executor: HyperWidthExecutor | None = None
        self._totals: Counter[TicketState] = Counter()
        self._widths: Counter[int] = Counter()
        self._figures = dict.fromkeys(FIGURES, 0)
        self._waits, self._runs = Times(), Times()

    def admit(self, *, request_id: str, prompt_tokens: int) -> HyperTicket:
        """Queue a request behind all others. Never blocks.

        Raises
        ------
        ValueError
            If the number of prompt tokens is negative.
        """
        if prompt_tokens < 0:
            raise ValueError(f"prompt_tokens is {prompt_tokens}; it must be 0 or more")
        with self._changed:
            # The clock is read under the lock: times of admission are in queue order.
            ticket = HyperTicket(request_id, prompt_tokens, self._clock())
            self._queue.append(ticket)
            self._totals[TicketState.QUEUED] += 1
        return ticket

    def bind(
        self, ticket: HyperTicket, closure: Closure, *, generation_mode: str = "mtp"
    ) -> Closure:
        """Make the callable that runs a request when its turn has come.

        Called, it waits until every request admitted before has ended, and runs the closure once:
        by itself, or through the width executor where that plans to be wider than 1. What the
        closure raises it raises.

        Raises
        ------
        ValueError
            If the generation mode is unknown, or the ticket is another gate's.
        RuntimeError
            If the ticket was bound before, or is not queued.
        """
        if generation_mode not in ("mtp", "ar"):
            raise ValueError(f"generation_mode is {generation_mode!r}; allowed: mtp, ar")
        with self._changed:
            _check_queued(ticket)
            if ticket not in self._queue:
                raise ValueError(f"{_name(ticket)} was admitted by another gate")
            if ticket.bound:
                raise RuntimeError(f"{_name(ticket)} is bound already")
            ticket.bound = True
        meta = HyperRequestMeta(ticket.request_id, ticket.prompt_tokens, generation_mode)

        def bound() -> Mapping[str, Any]:
            run = self._begin(ticket, meta)
            try:
                result = self._perform(run, closure)
            except BaseException:
                self._end(run, TicketState.FAILED)
                raise
            self._end(run, TicketState.DONE)
            return result

        return bound

    def release(self, ticket: HyperTicket) -> None:
        """Abandon a ticket that still waits; one that has begun or ended is left alone."""
        with self._changed:
            if ticket.state is TicketState.QUEUED:
                if ticket not in self._queue:
                    raise ValueError(f"{_name(ticket)} was admitted by another gate")
                self._queue.remove(ticket)
                self._settle(ticket, TicketState.ABANDONED)

    def install_width_executor(self, executor: HyperWidthExecutor) -> None:
        """Let an executor decide the width of the requests that begin from now on.

        Raises
        ------
        TypeError
            If it lacks one of its two methods.
        """
        for method in ("plan", "run_cohort"):
            if not callable(getattr(executor, method, None)):
                kind = type(executor).__name__
                raise TypeError(
                    f"a width executor needs plan and run_cohort; {kind} has no {method}"
                )
        with self._changed:
            self._executor = executor

    def clear_width_executor(self) -> None:
        """Run the requests that begin from now on at width 1; one that runs keeps its executor."""
        with self._changed:
            self._executor = None

    @property
    def width_executor(self) -> HyperWidthExecutor | None:
        """What is installed for the requests that begin from now on."""
        with self._changed:
            return self._executor

    def plan_cohort(self, request: HyperRequestMeta) -> HyperCohortPlan:
        """Ask the executor for a width: the active request its own, any other the installed one.

        Raises
        ------
        TypeError
            If the executor answers with something else than a plan.
        """
        with self._changed:
            run = self._run
            own = run is not None and run.meta is request
            executor = run.executor if run is not None and own else self._executor
        if executor is None:
            return NO_EXECUTOR
        plan: object = executor.plan(request)
        if not isinstance(plan, HyperCohortPlan):
            kind = type(plan).__name__
            raise TypeError(f"a width executor's plan must be a HyperCohortPlan, not {kind}")
        return plan

    def record_cohort_width(self, width: int) -> None:
        """Say how wide a cohort really was: the active request's, which is counted once it is done.

        With no request active, a cohort that ran elsewhere is counted.

        Raises
        ------
        ValueError
            If the width is below 1.
        """
        _check_width(width)
        with self._changed:
            if self._run is None:
                self._widths[width] += 1
            else:
                self._run.width = width

    def snapshot(self) -> dict[str, Any]:
        """Plain data: what waits, what runs, what has ended and how."""
        with self._changed:
            return {
                "stage": STAGE,
                "admission_cap": HYPER_ADMISSION_CAP,
                "width": 1 if self._run is None else self._run.width,
                "passthrough": PASSTHROUGH,
                "width_executor_installed": self._executor is not None,
                "active": int(self._run is not None),
                "queue_depth": len(self._queue),
                "admitted_total": self._totals[TicketState.QUEUED],
                "completed_total": self._totals[TicketState.DONE],
                "failed_total": self._totals[TicketState.FAILED],
                "abandoned_total": self._totals[TicketState.ABANDONED],
                "queue_wait_s": self._waits.summary(),
                "run_s": self._runs.summary(),
                "width_stats": {
                    "requests_by_width": {str(w): n for w, n in sorted(self._widths.items())},
                    **self._figures,
                },
            }

    def _begin(self, ticket: HyperTicket, meta: HyperRequestMeta) -> _Run:
        """Wait for the ticket's turn, and make it the active one."""
        with self._changed:
            while ticket.state is TicketState.QUEUED and not self._next_is(ticket):
                run = self._run
                if run is not None and run.thread == threading.get_ident():
                    raise RuntimeError(
                        f"{_name(ticket)} cannot run inside request {run.meta.request_id!r}"
                    )
                self._changed.wait()
            _check_queued(ticket)
            now = self._clock()
            self._queue.popleft()
            ticket.state = TicketState.ACTIVE
            self._waits.add(now - ticket.admitted)
            self._run = _Run(ticket, meta, self._executor, now, threading.get_ident())
            return self._run

    def _next_is(self, ticket: HyperTicket) -> bool:
        return self._run is None and self._queue[0] is ticket

    def _perform(self, run: _Run, closure: Closure) -> Mapping[str, Any]:
        plan = self.plan_cohort(run.meta)
        if plan.width == 1:
            return closure()
        if run.executor is None:
            raise RuntimeError(f"a plan of width {plan.width}, but no width executor is installed")
        self.record_cohort_width(plan.width)
        singleton = _Singleton(run.ticket, closure)
        result: object = run.executor.run_cohort(plan, singleton)
        singleton.check()
        if not isinstance(result, Mapping):
            kind = type(result).__name__
            raise TypeError(f"a width executor must return the request's mapping, not {kind}")
        if WIDTH in result:
            self.record_cohort_width(result[WIDTH])
        with self._changed:
            for name in FIGURES:
                self._figures[name] += result.get(name, 0)
        return result

    def _end(self, run: _Run, state: TicketState) -> None:
        with self._changed:
            self._run = None
            self._runs.add(self._clock() - run.started)
            if state is TicketState.DONE:
                self._widths[run.width] += 1
            self._settle(run.ticket, state)

    def _settle(self, ticket: HyperTicket, state: TicketState) -> None:
        ticket.state = state
        self._totals[state] += 1
        self._changed.notify_all()


class _Singleton:
    """A request's closure in an executor's hands: it runs once, and its failure is not lost."""

    def __init__(self, ticket: HyperTicket, closure: Closure) -> None:
        self._ticket = ticket
        self._closure = closure
        self._called = False
        self._error: BaseException | None = None

    def __call__(self) -> Mapping[str, Any]:
        if self._called:
            raise RuntimeError(f"the width executor ran {_name(self._ticket)} a second time")
        self._called = True
        try:
            return self._closure()
        except BaseException as error:
            self._error = error
            raise

    def check(self) -> None:
        """Raise what the executor has kept back: that the request failed, or never ran."""
        if self._error is not None:
            raise self._error
        if not self._called:
            raise RuntimeError(f"the width executor did not run {_name(self._ticket)}")


def _name(ticket: HyperTicket) -> str:
    return f"request {ticket.request_id!r}"


def _check_queued(ticket: HyperTicket) -> None:
    if ticket.state is not TicketState.QUEUED:
        raise RuntimeError(f"{_name(ticket)} is {ticket.state}: only one that is queued can run")
