"""The depth with the most expected tokens a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.decoding.depth import FLAT, Choice, CostCurve, Ladder, Rate, best_depth

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
    assert rate.given(0.5) == pytest.approx((5 + 2 * 0.5) / (6 + 2))


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
    assert ladder.given([0.5]) == pytest.approx([3 / 5, 2 / 4, 2 / 3])
    assert ladder.given([0.5, 0.5, 0.5, 0.2])[3] == 0.2
    assert Ladder().given([0.7]) == [0.7]
