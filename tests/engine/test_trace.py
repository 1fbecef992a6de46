"""Cycles are recorded one by one, and each token's origin is read from them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.timeline import (
    Cycle,
    Cycles,
    DecodeWindow,
    Origin,
    Remembered,
    Timeline,
    origins,
)
from mtplx_kernel.engine.trace import CYCLES_KEPT, FORGOTTEN_AT_ONCE, Step
from tests.engine.conftest import PROBE

COUNTED = 'start: "12345678901234567890"'


def cycle(at: float, drafted: int, accepted: int, tokens: int, by: str | None = None) -> Cycle:
    return Cycle(at, drafted, accepted, tokens, by, rows=1)


def recorded(count: int) -> Cycles:
    """Cycle n was at second n and gave the ids 2n and 2n + 1, the first of them drafted."""
    cycles = Cycles()
    for n in range(count):
        cycles.record(cycle(float(n), 2, 1, 2, "head"), [2 * n, 2 * n + 1])
    return cycles


def test_what_is_recorded_is_read_again() -> None:
    given = [
        Cycle(1.5, 3, 2, 3, "head", rows=4),
        Cycle(1.75, 0, 0, 1, None, rows=300),
        Cycle(2.0, 1, 0, 1, "lookup", rows=1),
        Cycle(2.25, 2, 2, 2, "head", rows=2),
    ]
    cycles = Cycles()
    for ids, one in zip(([7, 8, 9], [10], [11], [12, 13]), given, strict=True):
        cycles.record(one, ids)
    assert list(cycles) == given
    assert list(copy.deepcopy(cycles)) == given
    assert cycles.token_ids == [7, 8, 9, 10, 11, 12, 13]
    assert cycles.remembered() == Remembered(given, cycles.token_ids, 0, 0)


def test_each_token_has_an_origin() -> None:
    found = origins(
        [
            cycle(0.0, 0, 0, 1),
            cycle(0.1, 3, 2, 3),
            cycle(0.2, 2, 2, 3),
            cycle(0.3, 1, 0, 1),
            cycle(0.4, 2, 2, 2),  # its bonus was left out
            cycle(0.5, 3, 1, 1),  # the text ended with its first draft
        ]
    )
    assert [(o.kind, o.depth, o.cycle) for o in found] == [
        ("plain", 0, 0),
        ("accepted", 1, 1),
        ("accepted", 2, 1),
        ("correction", 0, 1),
        ("accepted", 1, 2),
        ("accepted", 2, 2),
        ("bonus", 0, 2),
        ("correction", 0, 3),
        ("accepted", 1, 4),
        ("accepted", 2, 4),
        ("accepted", 1, 5),
    ]


def test_the_oldest_cycles_are_forgotten_and_counted() -> None:
    cycles = recorded(CYCLES_KEPT + 1)
    assert len(cycles) == CYCLES_KEPT + 1 - FORGOTTEN_AT_ONCE
    known = cycles.remembered()
    assert (known.dropped, known.dropped_tokens) == (FORGOTTEN_AT_ONCE, 2 * FORGOTTEN_AT_ONCE)
    assert next(iter(cycles)).at == FORGOTTEN_AT_ONCE
    assert cycles.token_ids == list(range(2 * FORGOTTEN_AT_ONCE, 2 * CYCLES_KEPT + 2))
    found = origins(cycles)
    assert len(found) == 2 * CYCLES_KEPT + 2
    assert found[2 * FORGOTTEN_AT_ONCE - 1] == Origin("unknown", 0, -1)
    assert found[2 * FORGOTTEN_AT_ONCE] == Origin("accepted", 1, FORGOTTEN_AT_ONCE)
    assert found[-1] == Origin("correction", 0, CYCLES_KEPT)


def test_all_may_be_forgotten_and_recording_goes_on() -> None:
    cycles = recorded(3)
    cycles.forget()
    cycles.record(cycle(9.0, 0, 0, 1), [99])
    assert (list(cycles), cycles.token_ids) == ([cycle(9.0, 0, 0, 1)], [99])
    assert [o.kind for o in origins(cycles)] == ["unknown"] * 6 + ["plain"]
    assert origins(cycles)[-1].cycle == 3


def test_steps_join_neighbours_by_powers_of_two() -> None:
    cycles = recorded(5)
    assert [s.cycles for s in cycles.steps(8, start=-1.0)] == [1] * 5
    assert cycles.steps(2, start=-1.0) == [
        Step(-1.0, 3.0, cycles=4, drafted=8, accepted=4, tokens=8),
        Step(3.0, 4.0, cycles=1, drafted=2, accepted=1, tokens=2),
    ]
    assert Cycles().steps(2, start=0.0) == []


def test_readers_see_whole_states_while_cycles_are_recorded() -> None:
    cycles, over, faults = Cycles(), threading.Event(), set[str]()

    def read() -> None:
        while not over.is_set():
            seen = cycles.remembered()
            times = [one.at for one in seen.cycles]
            if times != [seen.dropped + n for n in range(len(times))]:
                faults.add("cycles are missing, or counted as others")
            if any(one.tokens != 1 + one.at % 7 for one in seen.cycles):
                faults.add("numbers of another cycle")
            wanted = [n for n in range(len(times)) for _ in range(1 + (seen.dropped + n) % 7)]
            if seen.token_ids != [seen.dropped + n for n in wanted]:
                faults.add("ids of other cycles")
            if seen.dropped_tokens != sum(1 + n % 7 for n in range(seen.dropped)):
                faults.add("forgotten tokens of other cycles")

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(4 * CYCLES_KEPT):
        tokens = 1 + n % 7
        cycles.record(cycle(float(n), 0, 0, tokens), [n] * tokens)
    over.set()
    reader.join()
    assert faults == set()


def test_a_forgotten_end_token_is_none_of_the_forgotten_ids() -> None:
    cycles = Cycles()
    cycles.record(cycle(0.0, 2, 2, 3), [7, 8])
    cycles.forget()
    assert cycles.remembered() == Remembered([], [], 1, 2)
    assert [o.kind for o in origins(cycles)] == ["unknown"] * 2


def test_old_requests_lose_their_cycles_and_open_ones_keep_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mtplx_kernel.engine.timeline.TRACED", 1)
    timeline = Timeline()
    windows = [DecodeWindow(name, 0.0) for name in "abc"]
    for window in windows:
        window.cycles.record(cycle(1.0, 0, 0, 1), [5])
    windows[0].ended = 2.0
    for window in windows:
        timeline.open(window)
    assert [len(window.cycles) for window in windows] == [0, 1, 1]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder)) as started:
        yield started


def test_an_engine_records_what_its_stats_count(engine: Engine) -> None:
    told = engine.generate(PROBE * 4, max_tokens=40, mode="mtp", depth=3, ignore_eos=True)
    cycles = list(told.window.cycles)
    assert len(cycles) == told.stats.verify_calls
    assert sum(one.tokens for one in cycles) == told.stats.completion_tokens == 40
    assert told.stats.drafted_by_depth is not None
    assert told.stats.accepted_by_depth is not None
    assert sum(one.drafted for one in cycles) == sum(told.stats.drafted_by_depth)
    assert sum(one.accepted for one in cycles) == sum(told.stats.accepted_by_depth)
    assert tuple(told.window.cycles.token_ids) == told.token_ids
    assert told.window.context == tuple((PROBE * 4)[-6:])
    times = [one.at for one in cycles]
    assert times == sorted(times)
    assert told.window.admitted is not None
    assert told.window.ended is not None
    assert told.window.admitted <= times[0] <= times[-1] <= told.window.ended
    assert {one.rows for one in cycles} == {1}
    assert {one.drafter for one in cycles if one.drafted} == {"lookup"}
    assert {one.drafter for one in cycles if not one.drafted} <= {None}
    assert len(origins(told.window.cycles)) == 40


def test_an_end_token_is_a_token_of_its_cycle(engine: Engine) -> None:
    told = engine.generate(PROBE, max_tokens=40, mode="ar", stop_token_ids=[_first(engine)])
    assert (told.finish_reason, told.token_ids, told.window.end_token) == ("stop", (), True)
    (only,) = told.window.cycles
    assert (only.drafted, only.tokens, only.drafter) == (0, 1, None)
    assert told.window.cycles.token_ids == []


def test_what_a_grammar_forces_is_its_draft(engine: Engine) -> None:
    told = engine.generate(PROBE, grammar=COUNTED, max_tokens=40, mode="mtp")
    drafted = {one.drafter for one in told.window.cycles if one.drafted}
    assert drafted == {"grammar"}
    assert told.text == "12345678901234567890"


def test_rows_that_share_a_forward_say_so(tiny_folder: Path) -> None:
    options = {"max_tokens": 12, "mode": "ar", "ignore_eos": True}
    with mk.load(str(tiny_folder), scheduler="ar_batch", width=4) as batching:
        told = batching.generate_batch([PROBE] * 3, **options)
    windows = [one.window for one in told if isinstance(one, mk.Generation)]
    assert len(windows) == 3
    for window in windows:
        assert max(one.rows for one in window.cycles) == window.width


def _first(engine: Engine) -> int:
    return engine.generate(PROBE, max_tokens=1, mode="ar", ignore_eos=True).token_ids[0]
