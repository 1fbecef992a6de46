"""Whether answers under scheduler hyper are those under serial: alone, and with forks."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mtplx_kernel.checks.asking import PATIENCE_S
from mtplx_kernel.checks.comparing import Comparer, Comparison, Question, failure
from mtplx_kernel.checks.rounds import busy, scheduler_put_back
from mtplx_kernel.engine.request import Generation
from mtplx_kernel.errors import InvalidRequest, RequestFailed
from mtplx_kernel.scheduling.gate import (
    Closure,
    HyperCohortPlan,
    HyperRequestMeta,
    HyperWidthExecutor,
)
from mtplx_kernel.scheduling.hyper import HyperWidths
from mtplx_kernel.scheduling.options import SchedulerMode

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

FORKS = 2
"""Rows of a fork: what a wider one commits goes through the same code."""
FORK_DEPTH = 4
"""Drafts a cycle where the engine would choose them itself: it may choose to have none."""
SWITCHED = "someone else switched the scheduler"
RUNS = (str(SchedulerMode.SERIAL), str(SchedulerMode.HYPER))

Answered = tuple[Question, Comparison]
"""A question, and what its answers in modes ar and mtp came to."""


@dataclass(frozen=True, slots=True)
class HyperRow:
    """One answer under hyper, held against the one under serial.

    Attributes
    ----------
    forked
        Whether the request went through the width executor.
    declined
        Why the executor left it alone; None where it did not, or there was none.
    fork_attempts, fork_wins
        Cycles with a twin, and those in which it was accepted further than the row itself.
    """

    comparison: Comparison
    forked: bool = False
    declined: str | None = None
    fork_attempts: int = 0
    fork_wins: int = 0


@dataclass(frozen=True, slots=True)
class HyperParity:
    """Answers under hyper.

    Attributes
    ----------
    rows
        Of requests alone, then of those with a width executor.
    left_out
        Why what is missing is missing; None where nothing is.
    """

    rows: tuple[HyperRow, ...]
    left_out: str | None = None


def check_parity(
    engine: Engine,
    comparer: Comparer,
    answered: Sequence[Answered],
    *,
    done: Callable[[], object],
) -> HyperParity:
    """Answer questions under hyper, alone and with forks; then the scheduler is as before.

    Others are left in peace: while they use the engine, what is not yet checked is left out.

    Parameters
    ----------
    answered
        What was compared before; an mtp answer that scheduler serial gave is the reference, any
        other is asked for again.
    done
        Called after each answer under hyper.

    Raises
    ------
    EngineClosed
        If the engine ends meanwhile. A request that fails is a finding.
    """
    usable = [entry for entry in answered if entry[1].answer is not None]
    if not usable:
        return HyperParity((), "there is no answer to hold it against")
    check = _Check(engine, comparer, done)
    try:
        check.quiet()
        with scheduler_put_back(engine):
            check.run(usable)
    except _Disturbed as disturbed:
        return HyperParity(tuple(check.rows), str(disturbed))
    return HyperParity(tuple(check.rows), check.left_out)


class _Disturbed(Exception):
    """Others use the engine; the message says how."""


class _Check:
    """The rows of a check so far."""

    def __init__(self, engine: Engine, comparer: Comparer, done: Callable[[], object]) -> None:
        self._engine = engine
        self._comparer = comparer
        self._done = done
        self.rows: list[HyperRow] = []
        self.left_out: str | None = None

    def quiet(self) -> None:
        """Go on only while nobody else has requests."""
        others = busy(self._engine)
        if others is not None:
            raise _Disturbed(f"the engine is {others}")

    @property
    def _gate(self) -> HyperWidths:
        try:
            return self._engine.gate
        except InvalidRequest:
            raise _Disturbed(SWITCHED) from None

    def run(self, answered: Sequence[Answered]) -> None:
        """Run all questions alone, then with forks."""
        references = self._references(answered)
        self._engine.configure(scheduler=SchedulerMode.HYPER)
        for question, expected in references:
            self.rows.append(HyperRow(self._held(question, expected)))
            self._done()
        self.quiet()
        forking = _Watched(self._engine.fork_executor(FORKS))
        self._gate.install_width_executor(forking)
        for question, expected in references:
            row = self._forked(question, expected, forking)
            self.rows.append(row)
            self._done()
            if row.declined is not None:
                self.left_out = f"no forks: {row.declined}"
                return

    def _references(self, answered: Sequence[Answered]) -> list[tuple[Question, Generation]]:
        """The questions with their answers under serial; one that fails there is a row."""
        found = []
        for question, comparison in answered:
            answer = comparison.answer
            try:
                if answer is None or answer.stats.scheduler_mode != SchedulerMode.SERIAL:
                    self._engine.configure(scheduler=SchedulerMode.SERIAL)
                    answer = self._answer(question, SchedulerMode.SERIAL)
            except RequestFailed as error:
                self.rows.append(HyperRow(failure(question, error)))
            else:
                found.append((question, answer))
        return found

    def _answer(self, question: Question, scheduler: SchedulerMode) -> Generation:
        self.quiet()
        answer = self._comparer.answer(question, "mtp")
        if answer.stats.scheduler_mode != scheduler:
            raise _Disturbed(SWITCHED)
        return answer

    def _held(self, question: Question, expected: Generation) -> Comparison:
        """Answer a question under hyper, and hold that against the answer under serial."""
        try:
            answer = self._answer(question, SchedulerMode.HYPER)
        except RequestFailed as error:
            return failure(question, error)
        return self._comparer.against(question, expected, answer, RUNS)

    def _forked(self, question: Question, expected: Generation, forking: _Watched) -> HyperRow:
        depth = FORK_DEPTH if question.depth is None else question.depth
        comparison = self._held(replace(question, depth=depth), expected)
        if comparison.answer is None:
            return HyperRow(comparison, forked=True)
        plan = forking.plans.get(comparison.answer.request_id)
        if plan is None:
            raise _Disturbed("someone else changed the width executor")
        if plan.width == 1:
            return HyperRow(comparison, declined=plan.reason)
        try:
            figures = forking.figures(comparison.answer.request_id)
        except queue.Empty:
            problem = "the width executor returned no result"
            return HyperRow(replace(comparison, problem=problem, failed=True), forked=True)
        return HyperRow(
            comparison,
            forked=True,
            fork_attempts=figures["fork_attempts"],
            fork_wins=figures["fork_wins"],
        )


class _Watched:
    """A width executor that tells what it planned for a request, and what came of it.

    Attributes
    ----------
    plans
        By the request's id.
    """

    def __init__(self, executor: HyperWidthExecutor) -> None:
        self._executor = executor
        self.plans: dict[str, HyperCohortPlan] = {}
        self._results: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

    def plan(self, request: HyperRequestMeta) -> HyperCohortPlan:
        """The executor's plan."""
        plan = self._executor.plan(request)
        self.plans[request.request_id] = plan
        return plan

    def run_cohort(self, plan: HyperCohortPlan, singleton: Closure) -> Mapping[str, Any]:
        """The executor's run."""
        result = self._executor.run_cohort(plan, singleton)
        self._results.put(result)
        return result

    def figures(self, request_id: str) -> Mapping[str, Any]:
        """What the executor returned for a request that has ended: it comes a little later.

        Raises
        ------
        queue.Empty
            If it does not come.
        """
        while True:
            result = self._results.get(timeout=PATIENCE_S)
            if result["request_id"] == request_id:
                return result
