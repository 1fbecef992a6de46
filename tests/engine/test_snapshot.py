"""The timeline at one moment: segments, cohorts, refills, lines and the total rate."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mtplx_kernel.engine.snapshot import FLOWS, Flow, Segment, TimelineView, view
from mtplx_kernel.engine.timeline import FLOW_S, CohortRecord, Cycle, DecodeWindow, Timeline
from mtplx_kernel.errors import InvalidRequest


def window(name: str, submitted: float, *times: float, **given: Any) -> DecodeWindow:
    """A request that was admitted, had its first token and ended at `times`, as far as given."""
    names = ("admitted", "first_token", "ended")
    found = DecodeWindow(name, submitted, **dict(zip(names, times, strict=False)), **given)
    found.prefill_started = found.admitted
    return found


def cohort(name: str, sealed: float, lane: int = 4, **given: Any) -> CohortRecord:
    return CohortRecord(name, "mtp/coupled", lane, sealed, **given)


def test_a_request_goes_through_its_segments() -> None:
    windows = [
        window("waits", 1.0),
        window("left", 1.0, ended=3.0),
        window("prefills", 1.0, 2.0),
        window("decodes", 1.0, 2.0, 3.0),
        window("ended", 1.0, 2.0, 3.0, 5.0),
    ]
    seen = view(windows, [], [], now=10.0)
    assert [r.segments for r in seen.requests] == [
        (Segment("queued", 1.0, 10.0),),
        (Segment("queued", 1.0, 3.0),),
        (Segment("queued", 1.0, 2.0), Segment("prefill", 2.0, 10.0)),
        (Segment("queued", 1.0, 2.0), Segment("prefill", 2.0, 3.0), Segment("decode", 3.0, 10.0)),
        (Segment("queued", 1.0, 2.0), Segment("prefill", 2.0, 3.0), Segment("decode", 3.0, 5.0)),
    ]
    assert (seen.start, seen.end, seen.waiting, seen.running) == (1.0, 10.0, 1, 2)
    assert view(windows[-1:], [], [], now=10.0).end == 5.0


def test_lines_are_grouped_by_cohort_in_the_order_of_their_seals() -> None:
    windows = [
        window("a", 0.0, 1.0, cohort_id="second", width=2),
        window("b", 0.1, 0.5, cohort_id="first", width=1),
        window("c", 0.2, 1.0, cohort_id="second", width=2),
        window("d", 0.3),
        window("e", 0.4, 0.5, cohort_id="first", width=3),
    ]
    cohorts = [cohort("first", 0.5, lane=4), cohort("second", 1.0, lane=2)]
    seen = view(windows, cohorts, [], now=2.0)
    assert seen.order == ("d", "b", "e", "a", "c")
    assert [(c.cohort_id, c.members, c.width, c.lane) for c in seen.cohorts] == [
        ("first", ("b", "e"), 3, 4),
        ("second", ("a", "c"), 2, 2),
    ]


def test_a_refill_takes_a_place_that_another_left() -> None:
    windows = [
        window("a", 0.0, 1.0, 2.0, 3.0, cohort_id="x"),
        window("b", 0.0, 1.0, 2.0, cohort_id="x"),
        window("c", 0.0, 3.0, cohort_id="x"),
        window("d", 0.0, cohort_id="x"),
    ]
    seen = view(windows, [cohort("x", 1.0)], [], now=4.0)
    assert [r.request_id for r in seen.requests if r.refill] == ["c"]
    assert seen.cohorts[0].refills == 1


def test_since_leaves_out_what_ended_before_but_keeps_its_line() -> None:
    windows = [
        window("old", 0.0, 1.0, 2.0, 3.0),
        window("new", 0.0, 1.0, 2.0, 5.0),
        window("open", 0.0, 1.0),
    ]
    seen = view(windows, [], [], now=6.0, since=4.0)
    assert seen.order == ("old", "new", "open")
    assert [r.request_id for r in seen.requests] == ["new", "open"]


def test_a_rate_so_far() -> None:
    running = window("a", 0.0, 1.0, 2.0, completion_tokens=11, first_block=1)
    (seen,) = view([running], [], [], now=4.0).requests
    assert seen.decode_tok_s == 5.0
    running.ended = 3.0
    (seen,) = view([running], [], [], now=9.0).requests
    assert seen.decode_tok_s == running.decode_tok_s == 10.0


def test_the_total_rate_is_counted_in_parts_of_time() -> None:
    timeline = Timeline()
    for start, end, tokens in ((10.0, 10.1, 3), (10.1, 10.2, 5), (10.25, 10.4, 8), (11.3, 11.4, 1)):
        timeline.count(start, end, tokens)
    assert timeline.flow() == [
        Flow(10.0, FLOW_S, 8),
        Flow(10.25, FLOW_S, 8),
        Flow(11.25, FLOW_S, 1),
    ]
    assert timeline.flow()[0].tok_s == 32.0


def test_a_long_forward_is_spread_over_its_time() -> None:
    timeline = Timeline()
    timeline.count(1.125, 1.75, 10)
    timeline.count(1.75, 1.75, 3)  # on a clock too coarse to see it
    found = [(part.start, part.tokens) for part in timeline.flow()]
    assert found == [(1.0, 2.0), (1.25, 4.0), (1.5, 4.0), (1.75, 3.0)]


def rate_of(flow: list[Flow], now: float) -> TimelineView:
    return view([window("a", 0.0)], [], flow, now)


def test_the_rate_of_now_leaves_out_the_part_that_is_not_over() -> None:
    flow = [Flow(1.0, 0.25, 10), Flow(1.25, 0.25, 20), Flow(1.5, 0.25, 1)]
    assert rate_of(flow, now=1.6).tok_s == 60.0
    assert rate_of(flow, now=1.75).tok_s == pytest.approx(31 / 0.75)
    assert rate_of(flow[:1], now=1.1).tok_s == 40.0
    assert rate_of([], now=1.1).tok_s == 0.0
    gap = [Flow(1.0, 0.25, 99), Flow(9.0, 0.25, 10), Flow(10.0, 0.25, 15)]
    assert rate_of(gap, now=60.0).tok_s == 20.0


def test_a_long_session_has_few_parts_that_sum_up() -> None:
    flow = [Flow(i * FLOW_S, FLOW_S, i % 3) for i in range(4 * FLOWS + 1)]
    seen = rate_of(flow, now=10_000.0).flow
    assert len(seen) <= FLOWS
    assert {part.seconds for part in seen} == {8 * FLOW_S}
    assert sum(part.tokens for part in seen) == sum(part.tokens for part in flow)
    assert rate_of(flow[:FLOWS], now=10_000.0).flow == tuple(flow[:FLOWS])


def test_the_newest_are_shown_and_whatever_has_not_ended() -> None:
    timeline = Timeline()
    for name in "abcde":
        timeline.open(window(name, 0.0, 0.0, 0.0, 1.0))
    timeline.windows()[1].ended = None
    seen = timeline.snapshot(most=2)
    assert (seen.order, seen.running) == (("b", "d", "e"), 1)


def test_a_cohort_that_a_request_joins_meanwhile_is_told_once() -> None:
    """The owner thread may write a cohort between any two looks at it."""

    class Joining(DecodeWindow):
        looks = 0

        @property
        def cohort_id(self) -> str | None:  # type: ignore[override]
            Joining.looks += 1
            return "x" if Joining.looks > 1 else None

        @cohort_id.setter
        def cohort_id(self, value: str | None) -> None:
            pass

    windows = [
        window("a", 0.0, 1.0, cohort_id="x"),
        Joining("b", 0.5),
        window("c", 2.0, 2.0, cohort_id="x"),
    ]
    seen = view(windows, [cohort("x", 1.0)], [], now=3.0)
    assert seen.order == ("b", "a", "c")
    assert [c.members for c in seen.cohorts] == [("a", "c")]


@pytest.mark.parametrize("look", range(8))
def test_a_request_that_ends_meanwhile_is_told_as_open_or_whole(look: int) -> None:
    """An end is written in steps, the reason last: whoever sees it sees all of the rest."""

    class Ending(DecodeWindow):
        looks = 0

        def _read(self, value: Any) -> Any:
            """The old value to so many looks; with the last of them the request ends."""
            Ending.looks += 1
            return value if Ending.looks > look + 1 else None

        ended = property(lambda self: self._read(3.0), lambda *_: None)
        finish_reason = property(lambda self: self._read("error"), lambda *_: None)

    (told,) = view([Ending("a", 0.0, 1.0, 2.0)], [], [], now=4.0).requests
    assert told.finish_reason is None or told.ended == 3.0


def test_no_more_drafts_are_right_than_there_were() -> None:
    """A cycle may be counted between any two looks."""

    class Counting(DecodeWindow):
        looks = 0

        def _read(self, name: str) -> Any:
            """The old value to the first look, at which a cycle is counted."""
            Counting.looks += 1
            counted = Counting.looks > 1
            return {"verify_calls": 1 + counted}.get(name, [1 + counted])

        verify_calls = property(lambda self: self._read("verify_calls"), lambda *_: None)
        drafted_by_depth = property(lambda self: self._read("drafted"), lambda *_: None)
        accepted_by_depth = property(lambda self: self._read("accepted"), lambda *_: None)

    (told,) = view([Counting("a", 0.0, 1.0, 2.0)], [], [], now=4.0).requests
    assert told.accepted <= told.drafted <= told.cycles


def test_what_began_after_the_look_has_no_negative_time() -> None:
    begun = window("a", 1.0, 2.5)
    (told,) = view([begun], [], [], now=2.0).requests
    assert [part.end - part.start for part in told.segments] == [1.5, 0.0]


def test_the_rate_of_tokens_that_are_being_counted_is_not_negative() -> None:
    begun = window("a", 1.0, 2.0, 3.0, first_block=4)
    assert view([begun], [], [], now=4.0).requests[0].decode_tok_s is None
    begun.completion_tokens = 10
    assert view([begun], [], [], now=4.0).requests[0].decode_tok_s == 6.0


def test_a_timeline_knows_whether_something_runs_and_finds_by_id() -> None:
    timeline = Timeline()
    assert not timeline.busy
    first = window("a", 0.0)
    timeline.open(first)
    assert timeline.busy
    assert timeline.find("a") is first
    assert timeline.find("b") is None
    first.ended = 1.0
    assert not timeline.busy


def example() -> Timeline:
    timeline = Timeline()
    done = window("a", 1.0, 2.0, 3.0, 5.0, finish_reason="length", completion_tokens=3)
    done.cycles.record(Cycle(4.0, 2, 2, 3, "head", rows=1), [5, 6, 7])
    done.record_cycle(2, 2)
    timeline.open(done)
    timeline.form(cohort("x", 2.0))
    done.cohort_id = "x"
    timeline.count(4.0, 4.0, 3)
    return timeline


def test_json_holds_all_of_it() -> None:
    found = json.loads(example().to_json())
    (request,) = found["requests"]
    assert (request["request_id"], request["drafted"], request["accepted"]) == ("a", 2, 2)
    assert request["segments"][-1] == {"kind": "decode", "start": 3.0, "end": 5.0}
    assert request["steps"] == [
        {"start": 3.0, "end": 4.0, "cycles": 1, "drafted": 2, "accepted": 2, "tokens": 3}
    ]
    assert found["cohorts"][0]["members"] == ["a"]
    assert found["flow"] == [{"start": 4.0, "seconds": FLOW_S, "tokens": 3}]


def test_a_frame_has_a_row_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: rows))
    (row,) = example().to_frame()
    assert (row["request_id"], row["completion_tokens"]) == ("a", 3)
    assert "cycles" not in row


def test_without_pandas_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidRequest, match="needs pandas, which is not installed"):
        Timeline().to_frame()
