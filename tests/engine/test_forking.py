"""The fork executor behind the gate: plans with a reason, the singleton's ids, true figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.depth import CostCurve, Costs, CostSurface
from mtplx_kernel.decoding.forking import ForkingStep
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.engine.forking import ForkExecutor
from mtplx_kernel.scheduling.gate import HyperAdmissionGate, HyperCohortPlan, HyperRequestMeta
from tests.decoding.rows import as_ar, run
from tests.decoding.twins import LENGTH, SecondHead, asked, target, truth
from tests.tiny import VOCABULARY

FREE = Costs(CostSurface(CostCurve((1, 100), (1.0, 1.0))))
DEAR = Costs(CostSurface(CostCurve((1, 100), (1.0, 100.0))))
META = HyperRequestMeta("row-0", 7, "mtp")


class Served:
    """A gate with a fork executor, and one request that it serves."""

    def __init__(self, row: Row, kind: str = "llama", costs: Costs = FREE, **options: Any) -> None:
        self.row, self.sizes = row, list[list[int]]()
        head = SecondHead([truth(kind)], 1)
        drafter = HeadDrafter(head, SlotCaches(head), VOCABULARY, costs=costs)
        self.step = ForkingStep(target(kind), SlotCaches(target(kind).model), drafter)
        settings = {"fits": lambda sizes: self.sizes.append(list(sizes)) or True, **options}
        self.executor = ForkExecutor(self.step, {row.request_id: row}.__getitem__, **settings)
        self.gate = HyperAdmissionGate()
        self.gate.install_width_executor(self.executor)

    def closure(self) -> Mapping[str, Any]:
        """Run the whole request, as the engine does, and free its slot whatever comes."""
        try:
            ended = run(self.step, [self.row])
        finally:
            self.step.release(self.row)
        return {"ids": self.row.ids, "ended": ended}

    def serve(self) -> Mapping[str, Any]:
        ticket = self.gate.admit(request_id=self.row.request_id, prompt_tokens=7)
        return self.gate.bind(ticket, self.closure)()


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_fork_behind_the_gate_gives_the_singletons_ids_and_true_figures(
    kind: str, width: int
) -> None:
    served = Served(asked(depth=1), kind, width=width)
    result = served.serve()
    # The second candidate is always right: 2 tokens a cycle, and the last cycle drafts nothing
    # only if one token is left.
    forks = LENGTH // 2
    figures = {
        "self_spec_rows_launched": forks * (width - 1),
        "self_spec_rows_committed": forks,
        "fork_attempts": forks,
        "fork_wins": forks,
    }
    served_as = {"ids": truth(kind), "ended": ["length"], "cohort_width": width}
    assert result == {**served_as, **figures}
    snapshot = served.gate.snapshot()
    assert snapshot["width_stats"] == {"requests_by_width": {str(width): 1}, **figures}
    assert snapshot["width"] == 1
    assert served.step.caches.slots == 1


def test_without_a_fixed_width_what_promises_most_is_planned() -> None:
    served = Served(asked(depth=1))
    # A head's draft is believed to be right in 0.65, the twins' in 0.3, 0.2 and 0.15 of the rest.
    some = 1 - 0.35 * 0.7 * 0.8 * 0.85
    assert served.executor.plan(META) == HyperCohortPlan(
        4,
        f"4 rows promise {1 + some:.2f}, one row 1.65 tokens in the time of one plain decode",
    )
    assert served.sizes == [[7 + LENGTH] * n for n in (2, 4, 4)]  # slots come in lanes
    served = Served(asked(depth=1), costs=DEAR)
    reason = "one row promises most, 0.82 tokens in the time of one plain decode"
    assert served.executor.plan(META) == HyperCohortPlan(1, reason)
    assert served.serve() == {"ids": truth("llama"), "ended": ["length"]}
    assert served.gate.snapshot()["width_stats"]["requests_by_width"] == {"1": 1}


def test_each_cycle_chooses_its_own_width_up_to_the_planned() -> None:
    served = Served(asked())
    result = served.serve()
    assert result["ids"] == truth("llama")
    assert result["fork_wins"] > 0
    assert served.gate.snapshot()["width_stats"]["requests_by_width"] == {"4": 1}


def test_a_request_that_never_forked_is_counted_as_alone() -> None:
    served = Served(asked(depth=1, max_tokens=1), width=2)
    assert served.serve()["cohort_width"] == 1
    stats = served.gate.snapshot()["width_stats"]
    assert (stats["requests_by_width"], stats["fork_attempts"]) == ({"1": 1}, 0)


def test_what_cannot_fork_runs_alone_and_says_why() -> None:
    lost = "its layers do not take several rows"
    served = Served(asked(depth=1), width=2, refusal=lost)
    assert served.executor.plan(META) == HyperCohortPlan(1, lost)
    served = Served(as_ar(asked()), width=2)
    assert served.executor.plan(META) == HyperCohortPlan(1, "the request drafts nothing")
    assert served.serve()["ids"] == truth("llama")
    served = Served(asked(temperature=0.8, acceptance="block"), width=2)
    reason = "acceptance block is proved for one continuation only"
    assert served.executor.plan(META) == HyperCohortPlan(1, reason)


def test_the_memory_limits_the_width() -> None:
    served = Served(asked(depth=1), fits=lambda sizes: len(sizes) < 3)
    assert served.executor.plan(META).width == 2
    for options in ({}, {"width": 3}):
        served = Served(asked(depth=1), fits=lambda sizes: False, **options)
        rows = options.get("width", 2)
        reason = f"the caches of {rows} rows do not fit in the memory"
        assert served.executor.plan(META) == HyperCohortPlan(1, reason)


def test_a_failure_ends_the_request_with_its_cause_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(asked(depth=1), width=2)
    forward = served.step.target.forward

    def failing(tokens: mx.array, cache: Any) -> mx.array:
        if tokens.shape[0] > 1 and len(served.row.ids) > 12:
            raise MemoryError("no room")
        return forward(tokens, cache)

    monkeypatch.setattr(served.step.target, "forward", failing)
    with pytest.raises(MemoryError, match="no room"):
        served.serve()
    monkeypatch.undo()
    assert served.step.caches.slots == 1
    snapshot = served.gate.snapshot()
    assert (snapshot["failed_total"], snapshot["width"], snapshot["active"]) == (1, 1, 0)
    served.row.ids[7:] = []
    assert served.serve()["ids"] == truth("llama")
