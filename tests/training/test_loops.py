"""Where rows begin to repeat themselves."""

from __future__ import annotations

import numpy as np

from mtplx_kernel.training.loops import loop_starts


def test_hand_made_rows() -> None:
    rng = np.random.default_rng(0)
    run = [5, 6, 7, 8, 9, 10, 11, 12]
    fresh = rng.permutation(1000)[:100] + 20
    thrice, four_times = fresh.copy(), fresh.copy()
    for row, times in ((thrice, 3), (four_times, 4)):
        for n in range(times):
            row[n * 20 : n * 20 + 8] = run
    shorter = fresh.copy()
    for n in range(8):
        shorter[n * 12 : n * 12 + 7] = run[:7]
    same = np.full(100, 3)
    rows = np.stack([fresh, thrice, four_times, shorter, same]).astype(np.int32)
    assert loop_starts(rows).tolist() == [100, 100, 20, 100, 1]
    assert loop_starts(rows, chunk=2).tolist() == [100, 100, 20, 100, 1]


def test_rows_too_short_to_loop() -> None:
    assert loop_starts(np.zeros((2, 9), np.int32)).tolist() == [9, 9]
    assert loop_starts(np.zeros((0, 50), np.int32)).tolist() == []
