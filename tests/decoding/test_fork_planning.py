"""Whether a row forks and how wide: refusals, what forks promise, what is learned from them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.decoding.budget import Offer
from mtplx_kernel.decoding.depth import CostCurve, Costs, CostSurface, HeadCost
from mtplx_kernel.decoding.draft_sampling import draw_drafts, rank_drafts
from mtplx_kernel.decoding.forking import Fork, ForkTimes, TwinRates, best_fork
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.sampling import noise
from tests.decoding.drafters import ForcedDrafter, right
from tests.decoding.rows import as_ar
from tests.decoding.twins import (
    SAMPLERS,
    SecondHead,
    asked,
    forking_step,
    truth,
)
from tests.tiny import VOCABULARY


def test_why_a_row_cannot_fork() -> None:
    step = forking_step("llama", SecondHead([truth("llama")]))
    assert step.why_not(asked()) is None
    assert step.why_not(asked(temperature=0.7)) is None
    drafts_nothing = "the request drafts nothing"
    assert step.why_not(as_ar(asked())) == drafts_nothing
    assert step.why_not(asked(depth=0)) == drafts_nothing
    for rule in ("rejection", "block"):
        reason = f"acceptance {rule} is proved for one continuation only"
        assert step.why_not(asked(temperature=0.7, acceptance=rule)) == reason
        assert step.why_not(asked(acceptance=rule)) is None  # greedy: the rule does not matter
    row = asked()
    row.omit_bonus = True
    assert step.why_not(row) == "the request omits the token after its drafts"
    none = forking_step("llama", None)
    assert none.why_not(asked()) == "nothing drafts for this model"
    forced = forking_step("llama", None, ForcedDrafter({}, right))
    assert forced.why_not(asked()) == "forced drafts one continuation only"


# What is right how often, and what it costs: rows cost nothing, or as much as their tokens.
FREE = ForkTimes(Costs(CostSurface(CostCurve((1, 100), (1.0, 1.0)))))
DEAR = ForkTimes(Costs(CostSurface(CostCurve((1, 100), (1.0, 100.0)))))


def test_the_best_fork_by_hand() -> None:
    twins = TwinRates()
    # Alone: 1 + 0.5. With a twin, right in 0.3 of the other half: 1 + 0.5 + 0.15; then 0.2 of the
    # rest: 0.5 * 0.7 * 0.2 = 0.07.
    offer = Offer([0.5], 1)
    assert best_fork(FREE, offer, twins, [1]).value == pytest.approx(1.5)
    assert best_fork(FREE, offer, twins, [2]).value == pytest.approx(1.65)
    assert best_fork(FREE, offer, twins, [1, 2, 3]) == Fork(3, 1, pytest.approx(1.72))
    # Of two drafts each: 1 + 0.5 + 0.25, and 1 + 0.65 + 0.325.
    deep = Offer([0.5], 2)
    assert best_fork(FREE, deep, twins, [1]) == Fork(1, 2, pytest.approx(1.75))
    assert best_fork(FREE, deep, twins, [2]) == Fork(2, 2, pytest.approx(1.975))
    # 2 tokens cost 2, twice 2 tokens cost 4.
    assert best_fork(DEAR, offer, twins, [1, 2]) == Fork(1, 1, pytest.approx(0.75))
    assert best_fork(DEAR, offer, twins, [2]) == Fork(2, 1, pytest.approx(1.65 / 4))
    # With a head: 0.25 for the first pass over one row, 0.5 a step of two rows.
    head = ForkTimes(Costs(FREE.costs.verify, {1: HeadCost(0.25, 0.25), 2: HeadCost(0.5, 0.5)}))
    made = Offer([0.5], 2, least=2, by_forward=True)
    assert best_fork(head, made, twins, [2]).value == pytest.approx(1.975 / 1.75)


def test_how_often_twins_are_right_is_learned() -> None:
    twins = TwinRates()
    assert twins.missed(0) == 1.0
    assert twins.missed(2) == pytest.approx(0.7 * 0.8)
    for _ in range(500):
        twins.observe([0, 3, 0])  # the first twin is right whenever the row is wrong
        twins.observe([2, 0, 0])  # and is not judged where the row is right
    assert twins.missed(1) < 0.06
    assert twins.missed(2) == pytest.approx(twins.missed(1) * 0.8)  # the second never had a chance
    for _ in range(500):
        twins.observe([0, 0, 0])
    assert twins.missed(2) > 0.9


def test_what_forks_promise_before_a_request_begins() -> None:
    step = forking_step("llama", SecondHead([truth("llama")]))
    assert isinstance(step.drafter, HeadDrafter)
    for times, best in ((FREE, 3), (DEAR, 1)):
        step.drafter.costs = times.costs
        forks = step.promises(asked(depth=1), [1, 2, 3])
        assert [f.width for f in forks] == [1, 2, 3]
        assert max(forks, key=lambda f: f.value).width == best
    # 0.65 is what a head's draft is believed to be right before any was tried.
    assert forks[0].value == pytest.approx(1.65 / 2)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("columns", [None, list(range(200, 150, -1))])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_first_drafts_are_the_rows_own_and_then_the_likeliest(
    sampler: str, columns: list[int] | None, count: int
) -> None:
    row = asked(sampler, top_k=1) if sampler == "sampled" else asked(sampler)
    ids = None if columns is None else mx.array(columns)
    width = VOCABULARY if columns is None else len(columns)
    logits = mx.random.normal((1, width), key=mx.random.key(3)) * 4
    ranked: Any = rank_drafts(logits, ids, VOCABULARY, row, count).tolist()
    assert len(set(ranked)) == count
    assert [ranked[0]] == draw_drafts(logits, ids, VOCABULARY, [row], 0).tokens.tolist()
    if sampler == "greedy":
        best: Any = mx.argsort(-logits[0])[:count].tolist()
        assert ranked == (best if columns is None else [columns[i] for i in best])
    if sampler == "sampled":
        # What top-k rules out for the head is ranked by the same noise that the target draws with.
        gumbel = noise(row.seed, len(row.ids), VOCABULARY)
        scores = logits[0] / 0.9 + (gumbel if ids is None else gumbel[ids])
        order: Any = mx.argsort(-scores).tolist()
        tokens = order if columns is None else [columns[i] for i in order]
        assert ranked[1:] == [token for token in tokens if token != ranked[0]][: count - 1]


def test_first_drafts_of_logits_that_are_not_finite_are_marked() -> None:
    logits = mx.full((1, VOCABULARY), mx.nan)
    assert rank_drafts(logits, None, VOCABULARY, asked(), 3).tolist() == [-1, -1, -1]
