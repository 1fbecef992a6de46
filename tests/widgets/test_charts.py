"""The charts of the acceptance view: marks where the numbers say, inside their frame."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mtplx_kernel.widgets.charts import (
    BROAD,
    FLOOR,
    HEIGHT,
    LEFT,
    TALL,
    WIDTH,
    Bar,
    Chart,
    Dot,
    Line,
    Words,
    by_depth,
    by_drafter,
    charts,
    chosen_depths,
    costs,
    over_time,
    short,
)
from mtplx_kernel.widgets.palette import SHADES
from mtplx_kernel.widgets.rates import AcceptanceView, CostPoint, Moment, Share

VIEW = AcceptanceView(
    requests=2,
    cycles=10,
    tokens=25,
    by_depth=(Share("1", 8, 8, 6), Share("2", 4, 4, 1)),
    by_drafter=(Share("head", 6, 10, 5), Share("lookup", 2, 2, 2)),
    moments=(Moment(0.0, 0.5, 4, 4, 3, 8), Moment(0.5, 0.5, 6, 0, 0, 6)),
    depths=((0, 2), (1, 4), (2, 4)),
    costs=(CostPoint(1, 20.0), CostPoint(5, 40.0)),
)
NOTHING = AcceptanceView(requests=0, cycles=0, tokens=0)


def bars(chart: Chart, *, hollow: bool = False) -> list[Bar]:
    return [mark for mark in chart.marks if isinstance(mark, Bar) and mark.hollow is hollow]


def words(chart: Chart) -> list[str]:
    return [mark.text for mark in chart.marks if isinstance(mark, Words)]


def test_bars_are_as_high_as_their_drafts_and_filled_as_far_as_right() -> None:
    chart = by_depth(VIEW)
    assert [bar.height / TALL for bar in bars(chart, hollow=True)] == [1.0, 0.5]
    assert [bar.height / TALL for bar in bars(chart)] == [0.75, 0.125]
    assert all(bar.y + bar.height == FLOOR for bar in (*bars(chart), *bars(chart, hollow=True)))
    assert {"75%", "25%", "8"} <= set(words(chart))
    assert chart.aria == (
        "Drafts right, by depth. depth 1: 6 of 8 right (75%); depth 2: 1 of 4 right (25%)."
    )


def test_drafters_are_filled_by_their_share() -> None:
    chart = by_drafter(VIEW)
    whole, filled = bars(chart, hollow=True), bars(chart)
    shares = [a.width / b.width for a, b in zip(filled, whole, strict=True)]
    assert shares == [0.5, 1.0]
    assert {"head", "50% of 10", "lookup", "100% of 2"} <= set(words(chart))


def test_time_without_drafts_has_tokens_but_no_share() -> None:
    chart = over_time(VIEW)
    tokens, share = (mark for mark in chart.marks if isinstance(mark, Line) and mark.role != "grid")
    assert tokens.points == (
        (LEFT + BROAD / 4, FLOOR - TALL),
        (LEFT + BROAD * 3 / 4, FLOOR - TALL / 2),
    )
    assert share.points == ((LEFT + BROAD / 4, FLOOR - TALL * 0.75),)
    assert chart.aria.endswith("Last: 0.5 s: no drafts, 1.00 tokens a cycle.")
    # One moment is no line yet, but is to be seen.
    dots = [m for m in chart.marks if isinstance(m, Dot) and m.role == "accepted"]
    assert [(dot.x, dot.y) for dot in dots] == list(share.points)
    assert "0.5 s" in words(over_time(replace(VIEW, moments=VIEW.moments[:1])))


def test_the_chosen_point_lies_on_the_cost_curve() -> None:
    # 1.2 drafts on average and one pending token: 2.2 of 5 tokens, 20 + 20 * 1.2 / 4 ms.
    chart = costs(VIEW)
    (chosen,) = (m for m in chart.marks if isinstance(m, Dot) and m.role == "correction")
    assert chosen.x == pytest.approx(LEFT + BROAD * 2.2 / 5)
    assert chosen.y == pytest.approx(FLOOR - TALL * 26 / 40)
    assert chosen.hint == "depth 1.2: 26 ms"


def test_depths_are_a_histogram() -> None:
    chart = chosen_depths(VIEW)
    assert [bar.height / TALL for bar in bars(chart)] == [0.5, 1.0, 1.0]
    assert "On average 1.2 drafts a cycle. 0: 2 cycles; 1: 4 cycles; 2: 4 cycles." in chart.aria


@pytest.mark.parametrize("view", [VIEW, NOTHING], ids=["some", "nothing"])
def test_all_marks_are_inside_and_of_known_colours(view: AcceptanceView) -> None:
    drawn = charts(view)
    assert len({chart.name for chart in drawn}) == 5
    for chart in drawn:
        assert chart.aria.startswith(chart.title)
        for mark in chart.marks:
            assert mark.role in SHADES
            points = mark.points if isinstance(mark, Line) else ((mark.x, mark.y),)
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points), (chart.name, mark)
            if isinstance(mark, Bar):
                assert 0 <= mark.width <= WIDTH - mark.x
                assert 0 <= mark.height <= HEIGHT - mark.y + 1e-9
    json.dumps([chart.as_data() for chart in drawn], allow_nan=False)


def test_nothing_is_said_in_words() -> None:
    assert [words(chart)[1] for chart in charts(NOTHING)] == [
        "no drafts yet",
        "no drafts yet",
        "nothing decoded yet",
        "no cycle in mode mtp yet",
        "not measured: nothing drafts",
    ]


def test_a_long_curve_keeps_the_chosen_point_inside() -> None:
    view = AcceptanceView(1, 1, 1, depths=((9, 1),), costs=(CostPoint(1, 2.0), CostPoint(4, 3.0)))
    (chosen,) = (m for m in costs(view).marks if isinstance(m, Dot) and m.role == "correction")
    assert (chosen.x, chosen.hint) == (LEFT + BROAD, "depth 9.0: 3 ms")


@pytest.mark.parametrize(
    ("count", "said"),
    [(7, "7"), (9999, "9999"), (14_800, "14.8k"), (999_499, "999k"), (999_500, "1M")],
)
def test_counts_are_short_beside_an_axis(count: int, said: str) -> None:
    assert short(count) == said
