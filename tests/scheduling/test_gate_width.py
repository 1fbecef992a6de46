"""The seam for more rows: whose plan it is, who runs it, and how it is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from mtplx_kernel.scheduling.gate import (
    FIGURES,
    NO_EXECUTOR,
    Closure,
    HyperAdmissionGate,
    HyperCohortPlan,
    HyperRequestMeta,
    HyperWidthExecutor,
)
from tests.scheduling.gating import (
    RESULT,
    Executor,
    admitted,
    fail,
    served,
    succeed,
    widths,
)


def test_without_an_executor_every_plan_is_one_wide() -> None:
    meta = HyperRequestMeta("a", 8, "mtp")
    assert HyperAdmissionGate().plan_cohort(meta) is NO_EXECUTOR
    assert HyperCohortPlan(1, "no width executor is installed") == NO_EXECUTOR


def test_width_one_is_the_closure_itself() -> None:
    gate, executor = HyperAdmissionGate(), Executor(width=1)
    gate.install_width_executor(executor)
    assert served(gate) is RESULT
    assert executor.planned == [HyperRequestMeta("a", 3, "mtp")]
    assert executor.ran == []
    assert widths(gate) == {"1": 1}


def test_a_wider_plan_is_the_executors_to_run_and_its_figures_are_summed_up() -> None:
    gate = HyperAdmissionGate()
    figures = dict(zip(FIGURES, (9, 4, 5, 2), strict=True))
    executor = Executor(2, lambda singleton: {**singleton(), **figures})
    gate.install_width_executor(executor)
    assert gate.snapshot()["width_executor_installed"] is True
    for _ in range(2):
        assert served(gate) == {**RESULT, **figures}
    assert executor.ran == [HyperCohortPlan(2, "as the test says")] * 2
    assert gate.snapshot()["width_stats"] == {
        "requests_by_width": {"2": 2},
        "self_spec_rows_launched": 18,
        "self_spec_rows_committed": 8,
        "fork_attempts": 10,
        "fork_wins": 4,
    }


def test_a_cohort_that_was_narrower_than_planned_is_counted_as_it_was() -> None:
    gate = HyperAdmissionGate()
    gate.install_width_executor(Executor(4, lambda singleton: {**singleton(), "cohort_width": 2}))
    served(gate)
    assert widths(gate) == {"2": 1}
    gate.install_width_executor(Executor(4, lambda singleton: {**singleton(), "cohort_width": 0}))
    with pytest.raises(ValueError, match=r"^width is 0; it must be 1 or more$"):
        served(gate)


def test_the_live_width_is_the_cohorts_while_it_runs_and_one_after_it() -> None:
    for closure in (succeed, fail):
        gate = HyperAdmissionGate()
        live: list[int] = []
        gate.install_width_executor(
            Executor(4, lambda s, g=gate, w=live: w.append(g.snapshot()["width"]) or s())
        )
        bound = gate.bind(admitted(gate), closure)
        if closure is fail:
            with pytest.raises(ZeroDivisionError):
                bound()
        else:
            bound()
        assert live == [4]
        assert gate.snapshot()["width"] == 1
        assert widths(gate) == ({} if closure is fail else {"4": 1})


def test_a_width_recorded_with_nobody_active_counts_by_itself() -> None:
    gate = HyperAdmissionGate()
    gate.record_cohort_width(2)
    assert widths(gate) == {"2": 1}
    assert gate.snapshot()["width"] == 1
    with pytest.raises(ValueError, match=r"^width is 0; it must be 1 or more$"):
        gate.record_cohort_width(0)


def test_an_executor_that_is_cleared_or_replaced_still_runs_what_it_planned() -> None:
    for after in (None, Executor(5)):
        gate = HyperAdmissionGate()

        class Fickle(Executor):
            def plan(
                self,
                request: HyperRequestMeta,
                gate: HyperAdmissionGate = gate,
                after: Executor | None = after,
            ) -> HyperCohortPlan:
                gate.clear_width_executor()
                if after is not None:
                    gate.install_width_executor(after)
                return super().plan(request)

        fickle = Fickle()
        gate.install_width_executor(fickle)
        assert served(gate) is RESULT
        assert len(fickle.ran) == 1
        assert widths(gate) == {"2": 1}
        served(gate, name="next")
        assert widths(gate) == ({"1": 1, "2": 1} if after is None else {"2": 1, "5": 1})


def test_an_executor_cleared_before_it_could_plan_plans_what_has_begun() -> None:
    class Hasty(HyperAdmissionGate):
        def plan_cohort(self, request: HyperRequestMeta) -> HyperCohortPlan:
            self.clear_width_executor()
            return super().plan_cohort(request)

    gate = Hasty()
    gate.install_width_executor(Executor(3))
    assert served(gate) is RESULT
    assert widths(gate) == {"3": 1}


def test_a_wide_plan_from_nowhere_fails_the_request() -> None:
    class Planner(HyperAdmissionGate):
        def plan_cohort(self, request: HyperRequestMeta) -> HyperCohortPlan:
            return HyperCohortPlan(2, "from nowhere")

    gate = Planner()
    with pytest.raises(RuntimeError, match=r"^a plan of width 2, but no width executor is inst"):
        served(gate)
    assert gate.snapshot()["failed_total"] == 1


class NoPlan:
    def run_cohort(self, plan: HyperCohortPlan, singleton: Closure) -> Mapping[str, Any]:
        return singleton()


class NoRun:
    run_cohort = None

    def plan(self, request: HyperRequestMeta) -> HyperCohortPlan:
        return HyperCohortPlan(1, "")


@pytest.mark.parametrize(("kind", "missing"), [(NoPlan, "plan"), (NoRun, "run_cohort")])
def test_half_an_executor_is_refused(kind: Any, missing: str) -> None:
    gate = HyperAdmissionGate()
    with pytest.raises(TypeError) as caught:
        gate.install_width_executor(kind())
    assert str(caught.value) == (
        f"a width executor needs plan and run_cohort; {kind.__name__} has no {missing}"
    )
    assert gate.snapshot()["width_executor_installed"] is False


def test_a_plan_that_is_no_plan_is_refused() -> None:
    class Wrong(Executor):
        def plan(self, request: HyperRequestMeta) -> Any:
            return {"width": 2}

    gate = HyperAdmissionGate()
    gate.install_width_executor(Wrong())
    message = r"^a width executor's plan must be a HyperCohortPlan, not dict$"
    with pytest.raises(TypeError, match=message):
        gate.plan_cohort(HyperRequestMeta("a", 1, "mtp"))
    with pytest.raises(TypeError, match=message):
        served(gate)


def test_plans_and_facts_are_frozen_and_widths_are_positive() -> None:
    for width in (0, -1):
        with pytest.raises(ValueError, match=rf"^width is {width}; it must be 1 or more$"):
            HyperCohortPlan(width, "")
    plan: Any = HyperCohortPlan(1, "")
    meta: Any = HyperRequestMeta("a", 1, "mtp")
    for frozen, name in ((plan, "width"), (meta, "prompt_tokens")):
        with pytest.raises(FrozenInstanceError):
            setattr(frozen, name, 2)


def swallow(singleton: Closure) -> Mapping[str, Any]:
    try:
        return singleton()
    except ZeroDivisionError:
        return RESULT


def twice(singleton: Closure) -> Mapping[str, Any]:
    singleton()
    return singleton()


def explode(singleton: Closure) -> Mapping[str, Any]:
    singleton()
    raise KeyError("cohort")


def test_an_executor_must_run_the_request_once_and_hide_nothing() -> None:
    cases: list[tuple[Callable[[Closure], Any], Closure, type[Exception], str]] = [
        (lambda singleton: RESULT, succeed, RuntimeError, "did not run request 'a'"),
        (twice, succeed, RuntimeError, "ran request 'a' a second time"),
        (lambda singleton: singleton() and None, succeed, TypeError, "mapping, not NoneType"),
        (swallow, fail, ZeroDivisionError, "no luck"),
        (explode, succeed, KeyError, "cohort"),
    ]
    for run, closure, kind, message in cases:
        gate = HyperAdmissionGate()
        executor: HyperWidthExecutor = Executor(2, run)
        gate.install_width_executor(executor)
        with pytest.raises(kind, match=message):
            served(gate, closure)
        snapshot = gate.snapshot()
        assert (snapshot["failed_total"], snapshot["active"], snapshot["width"]) == (1, 0, 1)
        assert widths(gate) == {}
