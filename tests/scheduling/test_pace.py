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
    assert [pace.chunk(n) for n in range(6)] == [128, 96, 64, 32, 16, 16]


def test_new_measurements_count_half() -> None:
    pace = Pace(MACHINE, 250)
    pace.prefilled(64, 0.064)
    pace.prefilled(64, 0.192)
    assert pace.prefill_seconds(10) == pytest.approx(0.02)
    pace.cycled(1, 0.25)
    pace.cycled(1, 0.75)
    assert pace.cycle == 0.5


def test_it_settles_on_the_chunk_that_fits_though_forwards_have_fixed_costs() -> None:
    pace = Pace(MACHINE, 200)
    pace.cycled(1, 0.05)
    for _ in range(20):
        chunk = pace.chunk(cycles=1)
        pace.prefilled(chunk, 0.04 + 0.002 * chunk)
    assert chunk in (54, 55)  # 50 + 40 + 2 * 55 = 200 ms


def test_a_prompt_token_is_worth_what_it_costs() -> None:
    pace = Pace(MACHINE, 200)
    assert pace.worth(64, 1.0) == 4.0  # a guess
    pace.prefilled(100, 0.2)
    pace.cycled(2, 0.04)
    assert pace.worth(100, 0.2) == pytest.approx(10)
    assert pace.worth(100, 0.02) == pytest.approx(1)  # most of it was in the prefix cache
    assert pace.worth(100, 9.0) == pytest.approx(10)  # something else took the time
