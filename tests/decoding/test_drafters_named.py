"""Every draft says who made it: the row's own text, its pool's, a head or a grammar."""

from __future__ import annotations

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.depth import Costs, CostSurface, HeadCost
from mtplx_kernel.decoding.drafting import Drafts
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.pool import PoolDrafter
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.drafters import ForcedDrafter
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar, make_row, run, start
from tests.decoding.test_pool import pooled
from tests.tiny import VOCABULARY, build

FREE = Costs(CostSurface(), {1: HeadCost(0.01, 0.01)})


def test_a_text_and_the_texts_of_others() -> None:
    rows = [pooled([1, 2, 3, 4, 5], 0), pooled([9, 2, 3], 1), pooled([6, 7, 8, 6, 7], 2)]
    drafts = PoolDrafter().propose(rows, [4, 4, 4])
    assert [bool(count) for count in drafts.counts] == [False, True, True]
    assert list(drafts.by)[1:] == ["pool", "lookup"]


def test_what_a_grammar_fills_in_leaves_the_names() -> None:
    drafts = Drafts.of([[1], []], by=["pool", "lookup"]).filled([[], [5, 6]])
    assert (drafts.counts, drafts.by) == ([1, 2], ["pool", "lookup"])


def test_outcomes_name_the_drafter_where_there_were_drafts() -> None:
    target = Target(build("llama"))
    truth = as_ar(make_row([5, 6, 7], max_tokens=8, ignore_eos=True))
    run(DecodeStep(target, SlotCaches(target.model), None), [truth])
    drafter = ForcedDrafter(
        {"row-0": truth.output}, lambda ids, depth: ids[:2] if depth > 2 else []
    )
    step = DecodeStep(target, SlotCaches(target.model), drafter)
    row = start(step, make_row([5, 6, 7], max_tokens=8, ignore_eos=True))
    found = []
    while not found or found[-1].ended is None:
        found += step.cycle([row])
    named = [(one.drafted, one.drafter) for one in found]
    assert named == [(2, "forced"), (2, "forced"), (0, None), (0, None)]
    assert row.ids == truth.ids


def test_a_head_beside_texts() -> None:
    target = Target(build("llama"))
    truth = as_ar(make_row([5, 6, 7, 8, 9], max_tokens=12, ignore_eos=True))
    run(DecodeStep(target, SlotCaches(target.model), None), [truth])
    head = TrueHead([truth.ids], 10**6)
    made = HeadDrafter(head, SlotCaches(head), VOCABULARY, FREE)
    step = DecodeStep(target, SlotCaches(target.model), CombinedDrafter(made, PoolDrafter(FREE)))
    row = start(step, make_row([5, 6, 7, 8, 9], max_tokens=12, ignore_eos=True, depth=2))
    (outcome,) = step.cycle([row])
    assert (outcome.drafter, outcome.drafted, outcome.accepted) == ("head", 2, 2)
