"""Drafts are counted once each, by depth, by drafter and over time, from cycles as they come."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mtplx_kernel.engine.timeline import Cycle, DecodeWindow
from mtplx_kernel.widgets.rates import CostPoint, Share, cost_at, costs_of, depth_of
from mtplx_kernel.widgets.tally import MOMENTS_SHOWN, AcceptanceTally

STATUS = {"verify_ms": {"1": 20.0, "4": 35.0, "2": 25.0}, "depth": {"default": None}}


def window(
    name: str, *cycles: tuple[float, int, int, str | None], mode: str = "mtp"
) -> DecodeWindow:
    """A window with cycles of (time, drafted, accepted, drafter), each with one token more."""
    made = DecodeWindow(name, 0.0, generation_mode=mode)
    record(made, *cycles)
    return made


def record(made: DecodeWindow, *cycles: tuple[float, int, int, str | None]) -> None:
    for at, drafted, accepted, drafter in cycles:
        cycle = Cycle(at, drafted, accepted, accepted + 1, drafter, 1)
        made.cycles.record(cycle, range(accepted + 1))


def test_drafts_are_counted_by_depth_and_by_drafter() -> None:
    tally = AcceptanceTally()
    first = window("req-1", (1.0, 0, 0, None), (1.1, 3, 3, "head"), (1.2, 3, 1, "head"))
    second = window("req-2", (1.15, 1, 0, "lookup"))
    tally.take([first, second])
    view = tally.view(STATUS)
    assert (view.requests, view.cycles, view.tokens) == (2, 4, 1 + 4 + 2 + 1)
    assert view.by_depth == (
        Share("1", 3, 3, 2),
        Share("2", 2, 2, 1),
        Share("3", 2, 2, 1),
    )
    assert view.by_drafter == (Share("head", 2, 6, 4), Share("lookup", 1, 1, 0))
    assert (view.drafted, view.accepted) == (7, 4)
    assert view.summary == (
        "2 requests, 8 tokens in 4 cycles (2.00 a cycle), 4 of 7 drafts right (57%)"
    )


def test_nothing_is_counted_twice_and_what_comes_later_is_added() -> None:
    tally, made = AcceptanceTally(), window("req-1", (1.0, 2, 2, "head"))
    tally.take([made])
    tally.take([made])
    assert tally.view(STATUS).cycles == 1
    record(made, (1.1, 2, 0, "head"))
    tally.take([made, window("req-2")])
    view = tally.view(STATUS)
    assert (view.requests, view.cycles, view.drafted, view.accepted) == (2, 2, 4, 2)


def test_forgotten_cycles_are_missed_but_not_counted_twice() -> None:
    tally, made = AcceptanceTally(), window("req-1", (1.0, 1, 1, "head"), (1.1, 1, 1, "head"))
    tally.take([made])
    record(made, (1.2, 1, 0, "head"))
    made.cycles.forget()
    record(made, (1.3, 1, 1, "head"))
    tally.take([made])
    view = tally.view(STATUS)
    assert (view.cycles, view.missed) == (3, 1)
    tally.take([made])
    assert tally.view(STATUS).cycles == 3


def test_the_depth_chosen_is_that_of_requests_in_mode_mtp() -> None:
    tally = AcceptanceTally()
    tally.take(
        [
            window("req-1", (1.0, 0, 0, None), (1.1, 4, 4, "head"), (1.2, 2, 0, "head")),
            window("req-2", (1.3, 0, 0, None), mode="ar"),
        ]
    )
    view = tally.view(STATUS)
    assert view.depths == ((0, 1), (2, 1), (4, 1))
    assert view.chosen == 2.0
    # One pending token and two drafts: half way from 2 tokens to 4.
    assert view.chosen_ms == 30.0


def test_time_goes_by_decoding_and_stays_bounded() -> None:
    tally = AcceptanceTally()
    tally.take([window("req-1", (10.0, 2, 1, "head"), (10.3, 2, 2, "head"), (99.0, 0, 0, None))])
    moments = tally.view(STATUS).moments
    assert [(m.start, m.seconds, m.cycles, m.share) for m in moments] == [
        (0.0, 0.5, 2, 0.75),
        (0.5, 0.5, 1, None),
    ]
    assert moments[0].tokens_per_cycle == 2.5
    tally.take([window("req-2", *((100.0 + n, 1, 1, "head") for n in range(5 * MOMENTS_SHOWN)))])
    moments = tally.view(STATUS).moments
    assert len(moments) <= MOMENTS_SHOWN
    assert sum(m.cycles for m in moments) == 3 + 5 * MOMENTS_SHOWN
    assert all(a.start + a.seconds == b.start for a, b in pairwise(moments))


def test_costs_and_depth_come_from_the_status() -> None:
    points = costs_of(STATUS)
    assert points == (CostPoint(1, 20.0), CostPoint(2, 25.0), CostPoint(4, 35.0))
    assert [cost_at(points, n) for n in (0.5, 1, 1.5, 3, 9)] == [20.0, 20.0, 22.5, 30.0, 35.0]
    assert cost_at(costs_of({}), 3) is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "adaptive"),
        ({"depth": {"default": 3, "reason": "as %mtplx tune found best"}}, "3 (as %mtplx tune"),
        ({"mode_reason": "its caches take nothing back", "depth": {}}, "no drafts"),
    ],
)
def test_the_depth_in_force_is_said_in_words(status: dict[str, object], said: str) -> None:
    assert depth_of(status).startswith(said)


def test_end_tokens_are_counted_apart() -> None:
    """They are decoded, but no view of a request counts them among its tokens."""
    tally = AcceptanceTally()
    made = window("req-1", (1.0, 0, 0, None), (1.1, 1, 1, "head"))
    for ended in (False, True, True):
        made.end_token = ended
        tally.take([made])
    assert tally.view({}).summary == (
        "1 request, 2 tokens and 1 end token in 2 cycles (1.50 a cycle), 1 of 1 draft right (100%)"
    )


def test_what_nobody_drafted_has_no_rate() -> None:
    tally = AcceptanceTally()
    assert tally.view({}).summary == "0 requests, nothing decoded yet"
    tally.take([window("req-1", (1.0, 0, 0, None), mode="ar")])
    view = tally.view({})
    assert (view.by_depth, view.by_drafter, view.depths, view.chosen_ms) == ((), (), (), None)
    assert view.summary == "1 request, 1 token in 1 cycle (1.00 a cycle), no drafts"
