"""One verify shared out over its rows: as good as trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.decoding.budget import Allotment, Offer, allot
from mtplx_kernel.decoding.depth import CostCurve, Costs, CostSurface, HeadCost, best_depth

CURVE = CostCurve((1, 2, 4, 9), (1.0, 1.2, 1.3, 2.9))
SURFACE = CostSurface(CURVE, {2: CostCurve((1, 2, 4), (1.2, 1.6, 2.8))}, position=0.05)
Asked = Sequence[Sequence[Offer]]


def value(costs: Costs, pending: Sequence[int], offers: Asked, found: Sequence[Allotment]) -> float:
    """Tokens in the time of one plain decode, from the definitions alone."""
    tokens, widest, deepest, rows = 0.0, 0, 0, len(pending)
    for first, row, share in zip(pending, offers, found, strict=True):
        tokens += 1
        widest = max(widest, first + share.count)
        if share.offer is not None:
            offer, chance = row[share.offer], 1.0
            assert offer.least <= share.count <= offer.most
            deepest = max(deepest, share.count if offer.by_forward else 0)
            for i in range(share.count):
                chance *= offer.rates[min(i, len(offer.rates) - 1)]
                tokens += chance
        else:
            assert share.count == 0
    drafts = sum(share.count for share in found)
    verify = costs.verify.prices(rows, widest)[-1] + drafts * costs.verify.draft
    return tokens / (verify + costs.drafting(rows, deepest))


def every_way(offers: Asked) -> list[tuple[Allotment, ...]]:
    """All that the rows can be given."""
    ways = []
    for row in offers:
        found = [
            Allotment(count, i)
            for i, offer in enumerate(row)
            for count in range(max(offer.least, 1), offer.most + 1)
        ]
        ways.append(found if any(offer.least for offer in row) else [Allotment(), *found])
    return list(product(*ways))


@st.composite
def rising(draw: st.DrawFn, blocks: tuple[int, ...]) -> CostCurve:
    steps = draw(st.lists(st.floats(0.0, 2.0), min_size=len(blocks), max_size=len(blocks)))
    seconds, total = [], draw(st.floats(0.5, 2.0))
    for step in steps:
        seconds.append(total)
        total += step
    return CostCurve(blocks, tuple(seconds))


@st.composite
def all_costs(draw: st.DrawFn) -> Costs:
    lanes = {n: draw(rising((1, 2, 4))) for n in draw(st.sets(st.sampled_from((2, 4))))}
    surface = CostSurface(draw(rising((1, 2, 4, 8))), lanes, draw(st.floats(0.0, 0.2)))
    parts = st.builds(HeadCost, st.floats(0.0, 0.5), st.floats(0.0, 0.5))
    return Costs(surface, draw(st.dictionaries(st.just(1), parts)))


@st.composite
def an_offer(draw: st.DrawFn, depth: int | None) -> Offer:
    rates = draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3))
    by_forward = draw(st.booleans())
    most = draw(st.integers(0, 3)) if depth is None else depth
    return Offer(rates, most, 0 if depth is None else depth, by_forward)


@st.composite
def a_row(draw: st.DrawFn) -> list[Offer]:
    depth = draw(st.sampled_from((None, None, 2)))
    return draw(st.lists(an_offer(depth), max_size=2))


@st.composite
def cycles(draw: st.DrawFn, fewest: int = 2) -> tuple[list[int], list[list[Offer]]]:
    offers = draw(st.lists(a_row(), min_size=fewest, max_size=3))
    pending = draw(st.lists(st.integers(1, 3), min_size=len(offers), max_size=len(offers)))
    return pending, offers


@settings(max_examples=150, deadline=None)
@given(costs=all_costs(), cycle=cycles())
def test_nothing_is_better(costs: Costs, cycle: tuple[list[int], list[list[Offer]]]) -> None:
    pending, offers = cycle
    best = max(value(costs, pending, offers, way) for way in every_way(offers))
    found = value(costs, pending, offers, allot(costs, pending, offers))
    assert found == pytest.approx(best, rel=1e-6)


@settings(deadline=None)
@given(costs=all_costs(), offers=a_row(), pending=st.integers(1, 5))
def test_one_row_gets_its_best_depth(costs: Costs, offers: list[Offer], pending: int) -> None:
    choices = [
        best_depth(
            costs.verify.one,
            offer.rates,
            offer.most,
            pending=pending,
            drafting=(lambda d: costs.drafting(1, d)) if offer.by_forward else (lambda d: 0.0),
            least=offer.least,
        )
        for offer in offers
    ]
    (found,) = allot(costs, [pending], [offers])
    if not choices:
        assert found == Allotment()
        return
    best = max(range(len(choices)), key=lambda i: choices[i].value)
    depth = choices[best].depth
    assert found == Allotment(depth, best if depth else None)


def test_by_hand() -> None:
    """Two rows, a draft of which 0.05 goes for its logits.

    None: 2 tokens for 1.2. One for the sure row: 3 for 1.5 + 0.05 (the block of 1.6 is without the
    logits of two positions). One each: 3.5 for 1.6. Two for the sure one, none for the other: 4 for
    2.2 - 4 * 0.05 + 2 * 0.05. So one each, as half a token for 0.05 is a bargain.
    """
    costs = Costs(SURFACE)
    assert SURFACE.prices(2, 3) == pytest.approx([1.2, 1.5, 2.0])
    offers = [[Offer([1.0], 2)], [Offer([0.5], 2)]]
    assert allot(costs, [1, 1], offers) == [Allotment(1, 0), Allotment(1, 0)]
    assert value(costs, [1, 1], offers, allot(costs, [1, 1], offers)) == pytest.approx(3.5 / 1.6)
    poor = [[Offer([1.0], 2)], [Offer([0.05], 2)]]  # 0.05 tokens for 0.05: 1.9 a decode are normal
    assert allot(costs, [1, 1], poor) == [Allotment(1, 0), Allotment(0, None)]


def test_the_deepest_row_pays_the_head_for_all() -> None:
    """Steps of a head cost the same for one row and two: what is made for one is made for both."""
    costs = Costs(CostSurface(), {1: HeadCost(0.3, 0.3)})
    good, fair = Offer([0.9], 1, by_forward=True), Offer([0.2], 1, by_forward=True)
    assert allot(costs, [1], [[fair]]) == [Allotment()]  # 1.2 tokens for 1.3
    assert allot(costs, [1, 1], [[fair], [fair]]) == [Allotment()] * 2
    assert allot(costs, [1, 1], [[good], [fair]]) == [Allotment(1, 0)] * 2


def test_a_fixed_depth_is_kept_whatever_it_costs() -> None:
    """And the others use the room: the block is wide, and the head runs, either way."""
    costs = Costs(CostSurface(CURVE), {1: HeadCost(1.0, 1.0)})
    bad = Offer([0.0], 3, least=3, by_forward=True)
    free = Offer([0.4], 4, by_forward=True)
    assert allot(costs, [1, 1], [[bad], []]) == [Allotment(3, 0), Allotment()]
    assert allot(costs, [1, 1], [[bad], [free]]) == [Allotment(3, 0), Allotment(3, 0)]


def test_copies_are_taken_where_they_are_as_good() -> None:
    costs = Costs(CostSurface(), {1: HeadCost(0.3, 0.3)})
    head, copy = Offer([0.8], 2, by_forward=True), Offer([0.8], 2)
    assert allot(costs, [1, 1], [[head, copy]] * 2) == [Allotment(2, 1)] * 2


def test_rows_without_offers() -> None:
    assert allot(Costs(), [1, 2], [[], []]) == [Allotment(), Allotment()]
    assert allot(Costs(), [3], [[]]) == [Allotment()]


rates = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3)


@settings(deadline=None)
@given(low=rates, by=st.floats(0.0, 1.0), rows=st.integers(2, 6), costs=all_costs())
def test_better_drafts_give_no_fewer_tokens(
    low: list[float], by: float, rows: int, costs: Costs
) -> None:
    high = [rate + by * (1 - rate) for rate in low]
    worse, better = ([[Offer(r, 6, by_forward=True)]] * rows for r in (low, high))
    found = [value(costs, [1] * rows, o, allot(costs, [1] * rows, o)) for o in (worse, better)]
    assert found[1] >= found[0] * (1 - 1e-6)
    plain = value(costs, [1] * rows, worse, [Allotment()] * rows)
    assert found[0] >= plain * (1 - 1e-6)


@settings(deadline=None)
@given(rates=rates, rows=st.integers(2, 6), costs=all_costs())
def test_a_better_row_gets_no_fewer_drafts(rates: list[float], rows: int, costs: Costs) -> None:
    """At one price of time the drafts of rows differ by their chances alone."""
    ordered = sorted((r * rates[0] / rows for r in range(1, rows + 1)), reverse=True)
    counts = [s.count for s in allot(costs, [1] * rows, [[Offer([r], 6)] for r in ordered])]
    assert counts == sorted(counts, reverse=True)


@settings(deadline=None)
@given(rates=rates, rows=st.integers(2, 4), dearer=st.floats(0.0, 1.0))
def test_dearer_logits_give_no_more_drafts(rates: list[float], rows: int, dearer: float) -> None:
    """Where a block costs the same at every width, only the logits of drafts hold them back."""

    def drafts(position: float) -> int:
        # The lanes are measured with their logits, so that a block without them costs 1.
        lane = CostCurve((1, 7), (1.0, 1.0 + 6 * position * rows))
        costs = Costs(CostSurface(lanes={rows: lane}, position=position))
        return sum(s.count for s in allot(costs, [1] * rows, [[Offer(rates, 6)]] * rows))

    assert drafts(0.1 + dearer) <= drafts(0.1)
