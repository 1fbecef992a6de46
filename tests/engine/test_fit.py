"""What is measured for a model: once, where it is wanted, and without touching what runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.depth import CostCurve
from mtplx_kernel.decoding.fitting import (
    HEAD_ROUNDS,
    LANE_BLOCKS,
    _least,
    measure_head,
    measure_lane,
    measure_position,
)
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.engine import fit as fit_module
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.fit import fit, measure_width
from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.models import measured
from mtplx_kernel.models.load import LoadedModel, load
from mtplx_kernel.models.measured import Tuned
from mtplx_kernel.models.target import Target
from tests.decoding.heads import TrueHead
from tests.decoding.rows import make_row, run
from tests.engine.conftest import PROBE, Start
from tests.engine.gates import on_owner


def test_a_tuned_depth_needs_no_kept_measurement(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    curve = CostCurve((1, 2, 4), (0.001, 0.0011, 0.0012))
    monkeypatch.setattr(fit_module, "measure_costs", lambda *_, **__: (curve, False))
    first = start()
    assert first.default_depth is None
    measured.keep_tuned(first.measured_key, Tuned(2, when=measured.time.time()))
    second = start()
    assert (second.default_depth, second.measured_key) == (2, first.measured_key)
    assert second.status()["costs_from"] == (
        "measured at this load: the machine was too busy to keep it"
    )
    assert second.status()["depth"] == {"default": 2, "reason": "as %mtplx tune found best"}
    measured.keep_tuned(first.measured_key, None)
    assert start().default_depth is None


def test_and_holds_beside_a_kept_one(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    curve = CostCurve((1, 2, 4), (0.001, 0.0011, 0.0012))
    monkeypatch.setattr(fit_module, "measure_costs", lambda *_, **__: (curve, True))
    first = start()
    measured.keep_tuned(first.measured_key, Tuned(3, when=measured.time.time()))
    second = start()
    assert second.status()["costs_from"].startswith("measured here on ")
    assert second.default_depth == 3


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> list[int]:
    """A cache of its own, costs that are made up, and the numbers of rows that were measured."""
    rows_measured: list[int] = []

    def lane(target: Any, rows: int, **_: Any) -> tuple[CostCurve, bool]:
        rows_measured.append(rows)
        seconds = tuple(0.001 * rows**0.5 * (1 + 0.1 * n) for n, _ in enumerate(LANE_BLOCKS))
        return CostCurve(LANE_BLOCKS, seconds), rows != 16

    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    curve = CostCurve((1, 2, 4), (0.001, 0.0011, 0.0012))
    monkeypatch.setattr(fit_module, "measure_costs", lambda *_, **__: (curve, True))
    monkeypatch.setattr(fit_module, "measure_lane", lane)
    monkeypatch.setattr(fit_module, "measure_position", lambda *_: 1e-5)
    return rows_measured


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load(tiny_folder, "tiny")


def test_lanes_are_measured_once_and_where_they_are_wanted(
    measuring: list[int], loaded: LoadedModel
) -> None:
    found, _, _ = fit(loaded)
    assert (found.lanes, found.throughput) == (None, pytest.approx({1: 1000.0}))
    assert measure_width(loaded, found, 1) is found
    narrow = measure_width(loaded, found, 3)
    assert measuring == [2, 4]
    assert narrow.throughput == pytest.approx({1: 1000.0, 2: 2000 / 2**0.5, 4: 2000.0})
    assert measure_width(loaded, narrow, 4) is narrow
    wide = measure_width(loaded, narrow, 8)
    assert measuring == [2, 4, 8]
    again, _, _ = fit(loaded)
    assert again.lanes == wide.lanes
    assert measure_width(loaded, again, 8) is again
    assert again.costs.verify.prices(2, 2)[0] == pytest.approx(2**0.5)
    assert again.costs.verify.draft == pytest.approx(0.01)


def test_what_was_measured_on_a_busy_machine_is_used_and_not_kept(
    measuring: list[int], loaded: LoadedModel
) -> None:
    found = measure_width(loaded, fit(loaded)[0], 16)
    assert set(found.throughput) == {1, 2, 4, 8, 16}
    assert fit(loaded)[0].lanes is None


def test_a_drafter_takes_new_costs(measuring: list[int], loaded: LoadedModel) -> None:
    found, _, _ = fit(loaded)
    drafter = found.drafter(loaded, None)
    assert drafter is not None
    assert drafter.costs == found.costs
    wider = measure_width(loaded, found, 2)
    drafter.costs = wider.costs
    assert drafter.costs == wider.costs != found.costs


def switch_at(engine: Engine, token: int, width: int) -> Callable[[int, str], None]:
    """A token callback that switches to ar_batch while its request runs."""
    runner, seen = on_owner(engine, lambda runner: runner), list[int]()

    def on_token(said: int, _: str) -> None:
        seen.append(said)
        if len(seen) == token:
            runner.modes.switch("ar_batch", {"width": width})

    return on_token


def test_what_runs_does_not_stand_still_while_lanes_are_measured(
    measuring: list[int], start: Start
) -> None:
    engine = start()
    switch, before = switch_at(engine, 2, width=6), list[list[int]]()

    def on_token(said: int, text: str) -> None:
        switch(said, text)
        before.append(list(measuring))

    engine.generate(PROBE, max_tokens=5, ignore_eos=True, on_token=on_token)
    assert before == [[]] * 5
    while not on_owner(engine, lambda runner: 8 in runner.modes.machine.throughput):
        pass  # with nothing left to run, lane after lane
    assert measuring == [2, 4, 8]
    assert on_owner(engine, lambda runner: runner.run_next()) == math.inf


def test_lanes_that_are_known_count_at_once_also_under_load(
    measuring: list[int], start: Start
) -> None:
    start().configure(scheduler="ar_batch", width=4)  # measures, and keeps what it found
    engine, known = start(), list[set[int]]()
    switch = switch_at(engine, 2, width=4)
    runner = on_owner(engine, lambda runner: runner)

    def on_token(said: int, text: str) -> None:
        switch(said, text)
        known.append(set(runner.modes.machine.throughput))

    engine.generate(PROBE, max_tokens=3, ignore_eos=True, on_token=on_token)
    assert known == [set(), {1, 2, 4}, {1, 2, 4}]
    assert measuring == [2, 4]


def test_lanes_that_cannot_be_measured_later_leave_the_engine_alive(
    measuring: list[int], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ModelUnusable("the head does not run")

    engine = start()
    monkeypatch.setattr(fit_module, "measure_lane", broken)
    engine.generate(PROBE, max_tokens=5, ignore_eos=True, on_token=switch_at(engine, 2, width=4))
    assert engine.generate(PROBE, max_tokens=3).stats.scheduler_mode == "ar_batch"
    said = engine.status()["scheduler"]["ar_batch"]["last_error"]
    assert said == "lanes could not be measured: ModelUnusable: the head does not run"


def test_measuring_leaves_other_caches_alone(loaded: LoadedModel) -> None:
    """A row that runs meanwhile goes on as if nothing had been."""
    target, caches = loaded.target, SlotCaches(loaded.target.model, 2)
    row = make_row([5, 6, 7, 8], max_tokens=6, ignore_eos=True)
    step = DecodeStep(target, caches, None)
    run(step, [row])
    other = make_row([5, 6, 7, 8], max_tokens=6, ignore_eos=True)
    step = DecodeStep(target, SlotCaches(target.model, 2), None)
    step.admit(other)
    step.prefill([other], [3])
    while other.room:
        curve, _ = measure_lane(target, 2, look_ahead=False)
        assert curve.tokens == LANE_BLOCKS
        assert list(curve.seconds) == sorted(curve.seconds)
        step.cycle([other])
    assert other.ids == row.ids
    assert measure_position(target) >= 0.0


class NotingHead(TrueHead):
    """Notes the shapes of what it is fed."""

    def __init__(self, truths: list[list[int]]) -> None:
        super().__init__(truths)
        self.shapes: set[tuple[int, ...]] = set()

    def feed(self, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.shapes.add(tuple(tokens.shape))
        return super().feed(features, tokens, cache)


def test_a_head_is_measured_for_as_many_rows(loaded: LoadedModel) -> None:
    head = NotingHead([[1] * 9] * 4)
    found = measure_head(head, SlotCaches(head, 4), loaded.target, 4)
    assert {rows for rows, _ in head.shapes} == {4}
    assert {width for _, width in head.shapes} == {3, 1}
    assert set(found) == {"first", "step"}
    assert min(found.values()) > 0


def test_a_head_is_measured_as_in_a_cycle_after_the_model(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone its weights would stay in the processor's cache, and it would look too cheap."""
    order: list[str] = []
    feed, forward = NotingHead.feed, Target.forward

    def fed(head: NotingHead, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        order.append("first" if tokens.shape[1] == 3 else "step")
        return feed(head, features, tokens, cache)

    def forwarded(target: Target, tokens: mx.array, cache: Any) -> mx.array:
        order.append("model")
        return forward(target, tokens, cache)

    monkeypatch.setattr(NotingHead, "feed", fed)
    monkeypatch.setattr(Target, "forward", forwarded)
    head = NotingHead([[1] * 9])
    measure_head(head, SlotCaches(head, 1), loaded.target)
    cycles = " ".join(order).split("model")[2:]  # before them states to feed were made
    assert cycles == [" first step "] * HEAD_ROUNDS + [" first step"]


def test_noise_is_outwaited() -> None:
    """Rounds are added until the least two of each size agree; then the least counts."""
    times = {1: [9, 1.0, 5.0, 1.1, 7.0], 2: [9, 2.0, 2.1, 2.2, 0.1]}
    left = {size: iter(found) for size, found in times.items()}
    assert _least(lambda size: next(left[size]), (1, 2)) == ((1.0, 2.0), True)
    assert list(left[1]) == [7.0]  # three rounds after the one that warms up
    steep = iter([2.0**n for n in range(20)])
    assert _least(lambda size: next(steep), (1,)) == ((2.0,), False)
    assert next(steep) == 2.0**6
