"""Thread counts: the measured choice and the governor, on made-up times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mtplx_kernel.models.threads import (
    ThreadGovernor,
    available_cpus,
    choose_threads,
    pinned_threads,
)


def test_the_fastest_count_wins() -> None:
    times = {1: 8.0, 2: 5.0, 4: 3.0, 6: 3.5}
    asked: list[int] = []

    def measure(count: int) -> float:
        asked.append(count)
        return times[count]

    assert choose_threads(measure, 6, environ={}, repeats=2) == 4
    assert asked == [1, 2, 4, 6, 1, 2, 4, 6]


def test_of_near_equals_the_smallest_wins() -> None:
    assert choose_threads({1: 1.0, 2: 0.97}.__getitem__, 2, environ={}) == 1


def test_one_disturbed_round_does_not_decide() -> None:
    series = {1: iter([4.0, 4.0, 4.0]), 2: iter([90.0, 2.0, 2.0])}
    assert choose_threads(lambda count: next(series[count]), 2, environ={}) == 2


def test_nothing_is_measured_where_there_is_no_choice() -> None:
    def never(count: int) -> float:
        raise AssertionError(count)

    assert choose_threads(never, 1, environ={}) == 1
    assert choose_threads(never, 8, environ={"OPENBLAS_NUM_THREADS": "3"}) == 3


@pytest.mark.parametrize(("text", "count"), [("2", 2), (" 4 ", 4), ("0", None), ("x", None)])
def test_pinned_count(text: str, count: int | None) -> None:
    assert pinned_threads({"OPENBLAS_NUM_THREADS": text}) == count
    assert pinned_threads({}) is None


@pytest.mark.parametrize(
    ("quota", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max", 64)]
)
def test_a_containers_quota_counts(tmp_path: Path, quota: str, most: int) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(quota + "\n")
    assert 1 <= available_cpus(limit) <= most
    assert available_cpus(tmp_path / "absent") >= available_cpus(limit)


def feed(governor: ThreadGovernor, time: Callable[[int], float], cycles: int) -> list[int]:
    """Run cycles of one shape whose time depends on the thread count; the counts that were used."""
    used = []
    for _ in range(cycles):
        used.append(governor.threads)
        governor.observe((1, 1), time(governor.threads))
    return used


def test_steady_cycles_keep_their_threads() -> None:
    governor = ThreadGovernor(2)
    assert set(feed(governor, lambda _: 10.0, 500)) == {2}
    assert governor.reason is None


def test_slow_cycles_step_down_to_one_thread_and_say_so() -> None:
    governor = ThreadGovernor(2)
    feed(governor, lambda _: 10.0, 20)
    used = feed(governor, lambda n: 400.0 if n == 2 else 15.0, 20)
    # The median of the last eight passes 3x when five of them are slow.
    assert used == [2] * 5 + [1] * 15
    assert governor.reason is not None
    assert "with 2 BLAS threads" in governor.reason
    assert "1 thread for now" in governor.reason


def test_a_few_slow_cycles_change_nothing() -> None:
    governor = ThreadGovernor(2)
    feed(governor, lambda _: 10.0, 20)
    assert feed(governor, lambda _: 400.0, 4) == [2] * 4
    assert set(feed(governor, lambda _: 10.0, 50)) == {2}


def test_a_longer_shape_is_not_a_slow_cycle() -> None:
    governor = ThreadGovernor(2)
    for shape, time in (((1, 1), 10.0), ((8, 4), 100.0)) * 20:
        assert governor.observe(shape, time) == 2
    for _ in range(20):
        assert governor.observe((16, 8), 500.0) == 2


def test_when_the_machine_is_quiet_again_the_threads_come_back() -> None:
    governor = ThreadGovernor(2)
    feed(governor, lambda _: 10.0, 20)
    feed(governor, lambda n: 400.0 if n == 2 else 15.0, 20)
    used = feed(governor, lambda n: 10.0 if n == 2 else 15.0, 300)
    assert used[-1] == 2
    assert used.count(1) == governor.first_probe_after - 15
    assert governor.reason is None


def test_probes_on_a_busy_machine_are_short_and_ever_rarer() -> None:
    governor = ThreadGovernor(2)
    feed(governor, lambda _: 10.0, 20)
    used = feed(governor, lambda n: 400.0 if n == 2 else 15.0, 2000)
    # Five cycles before the first step down, then two at each probe, 128, 256, 512, 1024 apart.
    assert used.count(2) == 5 + 2 * 4
    assert used[5 + 128 : 5 + 128 + 3] == [2, 2, 1]
    assert governor.threads == 1
    assert governor.reason is not None


def test_a_probe_that_meets_unknown_shapes_ends() -> None:
    governor = ThreadGovernor(2)
    feed(governor, lambda _: 10.0, 20)
    feed(governor, lambda n: 400.0 if n == 2 else 15.0, 5 + 128)
    assert governor.threads == 2
    used = []
    for _ in range(10):
        used.append(governor.threads)
        governor.observe((4, 4), 100.0)
    assert used == [2] * 8 + [1] * 2


@pytest.mark.parametrize("governor", [ThreadGovernor(1), ThreadGovernor(4, pinned=True)])
def test_what_the_user_pinned_or_cannot_shrink_stays(governor: ThreadGovernor) -> None:
    before = governor.threads
    feed(governor, lambda _: 10.0, 20)
    assert set(feed(governor, lambda _: 900.0, 50)) == {before}
    assert governor.reason is None
