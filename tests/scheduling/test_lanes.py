"""Lanes: the narrowest installed width, without those that do not pay."""

from __future__ import annotations

import pytest

from mtplx_kernel.scheduling.lanes import Lanes


@pytest.mark.parametrize(
    ("limit", "widths"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (6, (1, 2, 4, 6)),
        (8, (1, 2, 4, 8)),
        (33, (1, 2, 4, 8, 16, 32, 33)),
        (64, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_the_limit_is_a_lane(limit: int, widths: tuple[int, ...]) -> None:
    lanes = Lanes(limit)
    assert (lanes.widths, lanes.limit, lanes.dropped) == (widths, limit, ())


def test_rows_get_the_narrowest_lane() -> None:
    lanes = Lanes(12)
    found = [lanes.lane_for_width(rows) for rows in range(1, 13)]
    assert found == [1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]


@pytest.mark.parametrize("rows", [0, -1, 13])
def test_what_fits_in_no_lane_is_an_error(rows: int) -> None:
    with pytest.raises(ValueError, match=f"no lane has room for {rows} rows; allowed: 1 to 12"):
        Lanes(12).lane_for_width(rows)


def test_a_lane_that_is_slower_than_a_narrower_one_is_dropped() -> None:
    lanes = Lanes(16, {1: 10.0, 2: 19.0, 4: 30.0, 8: 26.0, 16: 40.0})
    assert (lanes.widths, lanes.dropped) == ((1, 2, 4, 16), (8,))
    assert lanes.lane_for_width(5) == 16


def test_if_the_widest_do_not_pay_batches_are_narrower() -> None:
    lanes = Lanes(16, {1: 10.0, 2: 19.0, 8: 12.0, 16: 17.0})
    assert (lanes.widths, lanes.dropped, lanes.limit) == ((1, 2, 4), (8, 16), 4)


def test_what_may_be_a_measurement_s_error_drops_no_lane() -> None:
    assert Lanes(4, {1: 10.0, 2: 9.5, 4: 9.0}).widths == (1, 2, 4)
    assert Lanes(4, {1: 10.0, 2: 9.5, 4: 8.9}).widths == (1, 2)


def test_equal_and_unmeasured_lanes_stay_and_others_do_not_count() -> None:
    assert Lanes(4, {1: 10.0, 2: 10.0, 3: 99.0}).widths == (1, 2, 4)


def test_other_widths_can_be_installed() -> None:
    assert Lanes(5, installed=(3, 8)).widths == (1, 3, 5)


def test_what_is_measured_later_counts_from_then_on() -> None:
    throughput = {1: 10.0}
    lanes = Lanes(4, throughput)
    assert (lanes.widths, lanes.dropped, lanes.limit) == ((1, 2, 4), (), 4)
    throughput[4] = 8.0
    assert (lanes.widths, lanes.dropped, lanes.limit) == ((1, 2), (4,), 2)
