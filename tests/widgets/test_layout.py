"""The layout: what is drawn of each request, and the words that say the same."""

from __future__ import annotations

import json

import pytest

from mtplx_kernel.engine.timeline import CohortRecord, Timeline
from mtplx_kernel.widgets.layout import (
    BAR,
    COLUMNS,
    FLOOR,
    TOP,
    Band,
    Layout,
    Mark,
    as_data,
    cohort_words,
    layout,
    line_data,
    nice,
)
from tests.widgets.timelines import cycles, example, request


@pytest.fixture(scope="module")
def placed() -> Layout:
    return layout(example().snapshot(), 900)


def test_times_count_from_the_first_request(placed: Layout) -> None:
    assert (placed.start, placed.end) == (0.0, 8.0)
    assert layout(example().snapshot(), 900, origin=9.0).start == 1.0


def test_a_line_has_a_mark_for_each_segment_and_step(placed: Layout) -> None:
    line = placed.lines[0]
    assert line.request_id == "alone"
    found = [(m.role, m.x, m.width) for m in line.marks]
    assert found == [
        ("queued", 0.0, 0.5),
        ("prefill", 0.5, 0.5),
        ("decode", 1.0, 2.0),
        ("accepted", 1.0, 1.0),
    ]
    full = line.marks[-1]
    assert full.y == pytest.approx(TOP)
    assert full.y + full.height == pytest.approx(FLOOR - BAR)


def test_the_height_is_the_drafts_that_were_right_in_a_cycle() -> None:
    timeline = Timeline()
    timeline.open(cycles(request("a", 0.0, 0.0, 1.0, 4.0), (2.0, 3, 1), (3.0, 6, 6)))
    one, many = [m for m in layout(timeline.snapshot(), 900).lines[0].marks if m.role == "accepted"]
    room = FLOOR - BAR - TOP
    assert (one.height, many.height) == (pytest.approx(room / 3), pytest.approx(room))


def test_a_bad_end_is_marked(placed: Layout) -> None:
    (mark,) = [m for m in placed.lines[-1].marks if m.role == "error"]
    assert mark == Mark("error", 8.0, TOP, 0.0, FLOOR - TOP)
    assert not any(m.role == "error" for line in placed.lines[:-1] for m in line.marks)


def test_a_cohort_is_a_band_behind_its_lines(placed: Layout) -> None:
    assert placed.order == ("alone", "b", "c", "d<x>", "e")
    label = "cohort-1: up to 2 rows in 2 slots, 1 refill, sealed at 3.00 s"
    assert placed.bands == (Band("cohort-1", label, first=1, count=3, start=3.0, end=8.0),)
    assert [line.label for line in placed.lines[1:4]] == [
        "b · slot 0",
        "c · slot 1",
        "d<x> · slot 0 (refill)",
    ]


def test_a_cohort_that_only_prefills_is_no_row_in_a_slot() -> None:
    timeline = Timeline()
    timeline.open(request("a", 0.0, 1.0, cohort_id="x"))
    timeline.form(CohortRecord("x", "mtp", 1, 1.0))
    assert cohort_words(timeline.snapshot().cohorts[0]) == "x: nothing decoded yet"
    timeline.windows()[0].width = 1
    assert cohort_words(timeline.snapshot().cohorts[0]) == "x: up to 1 row in 1 slot"


def test_an_open_cohort_goes_on_until_now() -> None:
    timeline = example()
    timeline.cohorts()[0].ended = None
    timeline.open(request("f", 14.0))
    now = timeline.snapshot()
    (band,) = layout(now, 900).bands
    assert band.end == now.now - 10.0


def test_words_say_what_is_drawn(placed: Layout) -> None:
    assert placed.lines[0].tells == (
        "submitted at 0.00 s",
        "queued 0.50 s",
        "prefill 0.50 s",
        "decode 2.00 s",
        "5 prompt tokens",
        "6 tokens, 3.0 a second",
        "3 cycles, 3 of 5 drafts right",
        "mode mtp, scheduler serial",
        "ended: stop",
    )
    assert placed.lines[2].tells[-2:] == (
        "cohort cohort-1, up to 2 rows a forward",
        "ended: length",
    )


def test_a_row_of_the_table_says_the_same(placed: Layout) -> None:
    assert dict(zip(COLUMNS, placed.lines[0].cells, strict=True)) == {
        "request": "alone",
        "cohort": "",
        "slot": "0",
        "queued s": "0.50",
        "prefill s": "0.50",
        "decode s": "2.00",
        "tokens": "6",
        "a cycle": "2.00",
        "tokens/s": "3.0",
        "end": "stop",
    }
    assert placed.lines[3].cells[2] == "0 refill"


def test_the_summary(placed: Layout) -> None:
    assert placed.summary == (
        "5 requests, 9 tokens; 8.0 tokens/s at the end. "
        "Cohorts: cohort-1: up to 2 rows in 2 slots, 1 refill."
    )
    assert layout(example().snapshot(most=2), 900).summary.startswith("2 of 5 requests, 0 tokens")
    assert layout(Timeline().snapshot(), 900).summary == "No requests yet."


def test_the_total_rate_is_a_curve(placed: Layout) -> None:
    assert [(r.x, r.tok_s) for r in placed.rates] == [(2.0, 32.0), (2.25, 16.0), (5.0, 8.0)]


@pytest.mark.parametrize(
    ("width", "texts"),
    [
        (900, ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s", "6 s", "7 s", "8 s"]),
        (300, ["0 s", "5 s"]),
    ],
)
def test_ticks_are_round_and_have_room(width: int, texts: list[str]) -> None:
    assert [tick.text for tick in layout(example().snapshot(), width).ticks] == texts


@pytest.mark.parametrize(
    ("least", "found"), [(1.0, 1.0), (1.1, 2.0), (0.03, 0.05), (7.0, 10.0), (200.0, 200.0)]
)
def test_nice_numbers(least: float, found: float) -> None:
    assert nice(least) == pytest.approx(found)


def test_the_live_view_gets_the_same_numbers(placed: Layout) -> None:
    head = json.loads(json.dumps(as_data(placed)))
    assert head["order"] == ["alone", "b", "c", "d<x>", "e"]
    assert head["bands"] == [[placed.bands[0].label, 1, 3, 3.0, 8.0]]
    assert head["rates"][0] == [2.0, 0.25, 32.0]
    line = line_data(placed.lines[0])
    assert line["marks"] == [
        ["queued", 0.0, 0.69, 0.5, 0.12],
        ["prefill", 0.5, 0.6, 0.5, 0.3],
        ["decode", 1.0, 0.6, 2.0, 0.3],
        ["accepted", 1.0, 0.12, 1.0, 0.48],
    ]


def test_an_empty_timeline_has_a_layout() -> None:
    empty = layout(Timeline().snapshot(), 900)
    assert (empty.lines, empty.bands, empty.ticks, empty.start) == ((), (), (), empty.end)
