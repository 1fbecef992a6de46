"""The depth with the most expected tokens a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.decoding.depth import (
    FLAT,
    Choice,
    CostCurve,
    Costs,
    CostSurface,
    HeadCost,
    Ladder,
    Rate,
    best_depth,
)

CURVE = CostCurve((1, 2, 5, 9), (10.0, 12.0, 15.0, 31.0))


@pytest.mark.parametrize(
    ("tokens", "cost"), [(1, 1.0), (2, 1.2), (3, 1.3), (5, 1.5), (7, 2.3), (9, 3.1), (11, 3.9)]
)
def test_cost_is_linear_between_and_beyond_the_points(tokens: int, cost: float) -> None:
    assert CURVE.cost(tokens) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("rate", "depth"),
    [
        (0.0, 0),  # 1/1 against 1/1.2
        (0.15, 0),  # 1.15/1.2 is below 1
        (0.25, 1),  # 1.25/1.2; 1.3125/1.3 is less
        (0.8, 4),  # 1.8/1.2 1.5; 2.44/1.3 1.88; 2.95/1.4 2.11; 3.36/1.5 2.24; 3.69/1.9 1.94
        (1.0, 4),  # 5/1.5 3.33; 9/3.1 2.90
    ],
)
def test_best_depth_by_hand(rate: float, depth: int) -> None:
    assert best_depth(CURVE, [rate], most=8).depth == depth


def test_no_depth_beyond_the_most() -> None:
    assert best_depth(CURVE, [1.0], most=2).depth == 2
    assert best_depth(CURVE, [1.0], most=0).depth == 0


def test_pending_tokens_move_along_the_curve() -> None:
    """Behind five known tokens each draft costs 0.4: half of them right is worth one, not two."""
    assert best_depth(CURVE, [0.5], most=8).depth == 2
    assert best_depth(CURVE, [0.5], most=8, pending=5).depth == 1


@given(rate=st.floats(0.01, 1.0), most=st.integers(0, 16))
def test_free_drafts_are_all_taken(rate: float, most: int) -> None:
    found = best_depth(FLAT, [rate], most).depth
    assert found == most or rate ** (found + 1) < 1e-15  # too small to add anything


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=30))
def test_a_rate_is_a_share(verifies: list[tuple[int, int]]) -> None:
    rate = Rate()
    for drafted, accepted in verifies:
        rate.observe(drafted, min(drafted, accepted))
    assert 0.0 <= rate.given(0.0) <= rate.given(0.5) <= rate.given(1.0) <= 1.0


def test_a_rate_counts_up_to_the_first_wrong_draft() -> None:
    rate = Rate(decay=1.0)
    rate.observe(4, 2)  # two right, one wrong; the fourth was never judged
    rate.observe(3, 3)
    assert (rate.hits, rate.tries) == (5.0, 6.0)
    assert rate.given(0.5) == pytest.approx((5 + 8 * 0.5) / (6 + 8))


def test_a_heavier_belief_moves_less() -> None:
    rate, ladder = Rate(1.0, weight=2.0), Ladder(1.0, weight=2.0)
    rate.observe(1, 0)
    ladder.observe(1, 0)
    assert rate.given(0.6) == ladder.given([0.6])[0] == pytest.approx(2 * 0.6 / (2 + 1))


def test_old_observations_fade() -> None:
    rate = Rate(decay=0.5)
    rate.observe(1, 1)
    rate.observe(1, 0)
    assert (rate.hits, rate.tries) == (0.5, 1.5)


def test_drafting_has_its_price() -> None:
    """With 0.2 for the first draft and 0.1 for each more: 1.8/1.4 1.29; 2.44/1.6 1.53; 2.95/1.8."""
    costs = {1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5, 0: 0.0}
    found = best_depth(CURVE, [0.8], most=2, drafting=costs.__getitem__)
    assert found.depth == 2
    assert found.value == pytest.approx(2.44 / 1.6)
    assert best_depth(CURVE, [0.3], most=2, drafting=costs.__getitem__) == Choice(0, 1.0)


def test_rates_differ_by_depth() -> None:
    """0.9 at first and 0.1 after that: 1.9/1.2 1.58; 1.99/1.3 1.53."""
    assert best_depth(CURVE, [0.9, 0.1], most=8).depth == 1


def test_a_fixed_depth_is_valued_too() -> None:
    found = best_depth(CURVE, [0.0], most=4, least=4)
    assert found == Choice(4, pytest.approx(1 / 1.5))


def test_a_ladder_counts_each_depth() -> None:
    ladder = Ladder(decay=1.0)
    ladder.observe(3, 1)  # the first right, the second wrong, the third not judged
    ladder.observe(3, 3)
    ladder.observe(1, 0)
    assert [(r.hits, r.tries) for r in ladder.rates] == [(2.0, 3.0), (1.0, 2.0), (1.0, 1.0)]
    assert ladder.given([0.5]) == pytest.approx([6 / 11, 5 / 10, 5 / 9])
    assert ladder.given([0.5, 0.5, 0.5, 0.2])[3] == 0.2
    assert Ladder().given([0.7]) == [0.7]


SURFACE = CostSurface(
    CostCurve((1, 2, 4), (2.0, 2.4, 3.2)),
    {2: CostCurve((1, 4), (3.0, 6.0)), 8: CostCurve((1, 4), (6.0, 15.0))},
    position=0.25,
)
"""Seconds; a decode takes 2."""


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        (1, [2.0, 2.4, 2.8, 3.2, 3.6]),  # as the curve says
        (2, [3.0, 4.0, 5.0, 6.0, 7.0]),  # as measured, and on beyond
        (4, [4.0, 17 / 3, 22 / 3, 9.0, 32 / 3]),  # a third of the way from two rows to eight
        (8, [6.0, 9.0, 12.0, 15.0, 18.0]),
        (11, [7.5, 11.5, 15.5, 19.5, 23.5]),  # half as much more as eight are more than two
    ],
)
def test_a_surface_between_what_was_measured(rows: int, seconds: list[float]) -> None:
    """Less the logits of all positions but one of each row, in decodes."""
    expected = [(s - 0.25 * rows * n) / 2 for n, s in enumerate(seconds)]
    assert SURFACE.prices(rows, 5) == pytest.approx(expected)
    assert SURFACE.draft == 0.125


def test_the_logits_of_all_positions_cost_what_was_measured() -> None:
    """Four tokens each of eight rows, 24 of them drafts: 15 seconds, 7.5 decodes."""
    assert SURFACE.prices(8, 4)[-1] + 24 * SURFACE.draft == pytest.approx(7.5)


def test_one_row_is_the_curve() -> None:
    surface = CostSurface(CURVE, SURFACE.lanes)
    assert surface.prices(1, 11) == [CURVE.cost(n) for n in range(1, 12)]


def test_rows_that_were_not_measured_cost_as_many_tokens() -> None:
    assert CostSurface(CURVE).prices(2, 3) == [CURVE.cost(2), CURVE.cost(4), CURVE.cost(6)]
    assert CostSurface().prices(8, 3) == [1.0, 1.0, 1.0]


def test_a_wider_block_or_more_rows_never_cost_less() -> None:
    """What noise makes of a measurement: a block of 4 that took less than one of 2."""
    odd = CostCurve((1, 2, 4), (3.0, 5.0, 4.0))
    assert CostSurface(lanes={2: odd}).prices(2, 4) == [3.0, 5.0, 5.0, 5.0]
    fewer = CostSurface(lanes={2: CostCurve((1, 2), (4.0, 4.0)), 4: CostCurve((1, 2), (3.0, 3.0))})
    assert fewer.prices(3, 1) == fewer.prices(4, 1) == [4.0]


def test_what_a_head_costs_by_rows() -> None:
    costs = Costs(head={1: HeadCost(0.1, 0.05), 4: HeadCost(0.4, 0.2)})
    assert [costs.drafting(1, depth) for depth in (0, 1, 3)] == pytest.approx([0.0, 0.1, 0.2])
    assert costs.drafting(4, 3) == pytest.approx(0.8)
    assert costs.drafting(2, 3) == pytest.approx(0.4)
    assert costs.drafting(7, 3) == pytest.approx(1.4)
    assert Costs(head={1: HeadCost(0.1, 0.05)}).drafting(8, 2) == pytest.approx(0.15)
    assert Costs().drafting(8, 2) == 0.0
