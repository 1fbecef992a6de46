"""One budget for the rows of a cycle: head and text together, whose ids are those of mode ar."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.depth import FLAT, PROBE_EVERY, CostCurve, Costs, CostSurface, HeadCost
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.pool import PoolDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar, make_row, run
from tests.tiny import VOCABULARY, build

PROMPTS = ((5, 6, 7, 8, 9, 40, 41), (90, 2, 5, 6, 7), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5))
SETTINGS: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "temperature": 0.7, "seed": 2}
DEAR = Costs(CostSurface(CostCurve((1, 2), (1.0, 3.0))), {1: HeadCost(1.0, 1.0)})
FREE = Costs(CostSurface(), {1: HeadCost(0.01, 0.01)})


@cache
def target(kind: str) -> Target:
    return Target(build(kind))


@cache
def truths(kind: str) -> tuple[list[int], ...]:
    found = []
    for prompt in PROMPTS:
        row = as_ar(make_row(prompt, **SETTINGS))
        run(DecodeStep(target(kind), SlotCaches(target(kind).model), None), [row])
        found.append(row.ids)
    return tuple(found)


@pytest.mark.parametrize("costs", [DEAR, FREE, Costs()], ids=["dear", "free", "unknown"])
@pytest.mark.parametrize("wrong_every", [10**6, 3])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_next"])
def test_ids_do_not_depend_on_the_budget(kind: str, wrong_every: int, costs: Costs) -> None:
    """Rows of all kinds in one cycle: free, at a fixed depth, at none."""
    head = TrueHead(list(truths(kind)), wrong_every)
    made = HeadDrafter(head, SlotCaches(head), VOCABULARY, costs)
    step = DecodeStep(
        target(kind), SlotCaches(target(kind).model), CombinedDrafter(made, PoolDrafter(costs))
    )
    depths = (None, 2, 0)
    rows = [
        make_row(prompt, number=n, depth=depth, **SETTINGS)
        for n, (prompt, depth) in enumerate(zip(PROMPTS, depths, strict=True))
    ]
    for row in rows:
        row.pool = "a"
    run(step, rows)
    assert [row.ids for row in rows] == list(truths(kind))
    assert [row.draft_error for row in rows] == [None] * 3


class Told:
    """Rows before a head, with the counts that it plans for them cycle by cycle."""

    def __init__(self, costs: Costs, rows: int) -> None:
        texts = [[100 + r] * 4 for r in range(rows)]
        head = TrueHead(texts)
        self.drafter = HeadDrafter(head, SlotCaches(head, rows), VOCABULARY, costs)
        self.rows = [make_row(t, number=r, max_tokens=400) for r, t in enumerate(texts)]
        self.drafter.see(self.rows, [0] * rows, mx.zeros((rows, 3, 4)))

    def cycle(self, right: bool = False) -> list[int]:
        """One more token for each row, and its drafts."""
        for row in self.rows:
            row.committed = len(row.ids) - 1
        counts = self.drafter.propose(self.rows, [4] * len(self.rows)).counts
        for row, count in zip(self.rows, counts, strict=True):
            tokens = [7] * (count + 1 if right else 1)
            self.drafter.observe(row, count, tokens)
            row.ids += tokens
        return counts


def test_rows_that_are_not_worth_it_are_probed_together() -> None:
    """The second row joins in the middle, and is probed with the first from then on."""
    told = Told(DEAR, 2)
    late = told.rows.pop()
    made = [told.cycle() for _ in range(PROBE_EVERY // 2)]
    told.rows.append(late)
    made += [told.cycle() for _ in range(2 * PROBE_EVERY)]
    probes = [n for n, counts in enumerate(made) if any(counts)]
    assert [made[n] for n in probes] == [[1, 1]] * len(probes)
    assert probes == [n for n in range(len(made)) if n and n % PROBE_EVERY == 0]


def test_a_row_is_probed_alone_where_the_others_draft() -> None:
    told = Told(Costs(CostSurface(position=0.2), {1: HeadCost(0.01, 0.01)}), 2)
    poor = told.rows[1].request_id
    for _ in range(40):
        told.drafter._states[poor].ladder.observe(1, 0)
    told.drafter._states[told.rows[0].request_id].ladder.observe(4, 4)
    counts = told.drafter.propose(told.rows, [4, 4]).counts
    assert counts[0] > 0
    assert counts[1] == 0
    told.rows[1].ids += [7] * PROBE_EVERY
    told.rows[1].committed = len(told.rows[1].ids) - 1
    assert told.drafter.propose(told.rows, [4, 4]).counts == [counts[0], 1]


def test_a_poor_start_does_not_end_drafting_and_a_poor_text_does() -> None:
    """Of a head that is right two times of three, a few wrong drafts are bad luck, many are not."""
    steep = Costs(CostSurface(CostCurve((1, 2), (1.0, 1.2))), {1: HeadCost(0.07, 0.07)})
    told = Told(steep, 1)
    for right in (1, 1, 0) * 60:
        told.drafter._ladder.observe(1, right)
    made = [told.cycle()[0] for _ in range(60)]
    assert all(made[:6])
    assert [n > 0 for n in made[-PROBE_EVERY:]].count(True) == 1


def test_a_poor_start_of_a_whole_batch_does_not_end_its_drafting() -> None:
    """The first draft of each of eight rows is wrong, as first words are hard to guess."""
    lane = CostCurve((1, 2), (1.2, 1.5))
    costs = Costs(CostSurface(lanes={8: lane}), {1: HeadCost(0.12, 0.08)})
    told = Told(costs, 8)
    assert [sum(told.cycle()) > 0 for _ in range(2)] == [True, True]


def test_costs_may_change_between_cycles() -> None:
    told = Told(FREE, 2)
    assert told.cycle(right=True) == [4, 4]
    told.drafter.costs = DEAR
    assert told.cycle(right=True) == [0, 0]
    drafter = CombinedDrafter(told.drafter, PoolDrafter(FREE))
    drafter.costs = FREE
    assert drafter.costs == told.drafter.costs == drafter.text.costs == FREE


def test_the_head_is_asked_for_no_row_that_copies() -> None:
    """All rows copy: no forward of the head is made."""
    loop = [1, 2, 3] * 6
    head = TrueHead([loop, loop])
    costs = Costs(CostSurface(FLAT), {1: HeadCost(0.5, 0.5)})
    drafter = CombinedDrafter(
        HeadDrafter(head, SlotCaches(head, 2), VOCABULARY, costs), PoolDrafter(costs)
    )
    rows: list[Row] = [make_row(loop, number=n) for n in range(2)]
    for row in rows:
        row.committed = len(row.ids) - 1
    drafter.see(rows, [0, 0], mx.zeros((2, 17, 4)))
    for row in rows:
        drafter.text.observe(row, 0, [1, 2, 3, 1, 2, 3, 1, 2])
    drafts = drafter.propose(rows, [4, 4])
    assert drafts.known == [[1, 2, 3, 1]] * 2
    assert drafts.compute is None
