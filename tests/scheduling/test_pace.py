"""How long a chunk may be, learnt from what chunks and cycles took."""

from __future__ import annotations

import pytest

from mtplx_kernel.scheduling.pace import Pace
from mtplx_kernel.scheduling.policy import Machine

MACHINE = Machine(chunk=128)


def test_before_anything_is_known_chunks_are_small_where_somebody_waits() -> None:
    pace = Pace(MACHINE, 200)
    assert (pace.chunk(cycles=0), pace.chunk(cycles=1)) == (128, 16)
    assert Pace(Machine(chunk=8), 200).chunk(cycles=1) == 8


def test_a_chunk_fills_what_cycles_leave_of_the_gap() -> None:
    pace = Pace(MACHINE, 250)
    pace.prefilled(128, 0.25)
    pace.cycled(4, 0.0625)
    # A cycle takes the time of 32 prompt tokens, and the gap holds 128.
    assert [pace.chunk(n) for n in range(6)] == [128, 96, 64, 32, 8, 8]


def test_new_measurements_count_half() -> None:
    pace = Pace(MACHINE, 250)
    pace.prefilled(64, 0.064)
    pace.prefilled(64, 0.192)
    assert pace.prefill_seconds(10, 1) == pytest.approx(0.02)
    pace.cycled(1, 0.25)
    pace.cycled(1, 0.75)
    assert pace.cycle == 0.5


def test_fixed_costs_are_told_from_those_of_each_token() -> None:
    pace = Pace(MACHINE, 200)
    pace.cycled(1, 0.05)
    chunks = []
    for _ in range(4):
        chunks.append(pace.chunk(cycles=1))
        pace.prefilled(chunks[-1], 0.04 + 0.002 * chunks[-1])
    # After one size, 72 ms for 16 tokens look like 4.5 ms a token; after two, 50 + 40 + 2 * 55 ms.
    assert chunks == [16, 33, 55, 55]
    assert pace.prefill_seconds(100, 3) == pytest.approx(3 * 0.04 + 100 * 0.002)


def test_a_chunk_that_took_long_for_another_reason_tells_nothing_of_fixed_costs() -> None:
    pace = Pace(MACHINE, 200)
    pace.prefilled(128, 0.128)
    pace.prefilled(16, 0.160)  # fewer tokens, more time
    assert pace.prefill_seconds(10, 9) == pytest.approx(10 * (0.001 + 0.010) / 2)


def test_a_text_that_grows_makes_all_of_a_chunk_dearer() -> None:
    """Chunks shrink as they are sized to take the same time: no sign that only fixed costs grew."""
    pace = Pace(Machine(chunk=512), 200)
    pace.cycled(1, 0.05)
    gaps = []
    for n in range(60):
        chunk = pace.chunk(cycles=1)
        seconds = (20 + chunk) * 0.0005 * (1 + n / 20)
        gaps.append(0.05 + seconds)
        pace.prefilled(chunk, seconds)
    assert max(gaps[5:]) < 0.2
    assert min(gaps[5:]) > 0.17


def test_uneven_cycles_leave_room_for_the_longer_ones() -> None:
    pace = Pace(Machine(chunk=512), 200)
    pace.prefilled(100, 0.1)
    for n in range(40):
        pace.cycled(1, 0.06 if n % 2 else 0.10)
    chunk = pace.chunk(cycles=1)
    assert 0.13 < 0.10 + chunk * 0.001 < 0.2


def test_tokens_that_come_together_may_be_waited_for_together() -> None:
    pace = Pace(MACHINE, 100)
    pace.prefilled(100, 0.2)
    assert pace.burst == 1
    pace.cycled(6, 0.06, rows=3)
    assert pace.burst == 2
    assert (pace.chunk(cycles=1), pace.chunk(cycles=1, gaps=pace.burst)) == (20, 70)
    pace.cycled(0, 0.06, rows=3)  # all rows failed
    assert pace.burst == 1.5


def test_a_prompt_token_is_worth_what_it_costs() -> None:
    pace = Pace(MACHINE, 200)
    assert pace.worth(64, 1.0) == 4.0  # a guess
    pace.prefilled(100, 0.2)
    pace.cycled(2, 0.04)
    assert pace.worth(100, 0.2) == pytest.approx(10)
    assert pace.worth(100, 0.02) == pytest.approx(1)
    assert pace.worth(100, 9.0) == pytest.approx(10)  # something else took the time
