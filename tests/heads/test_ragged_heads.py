"""Rows of different lengths in one right-padded forward: each gets what it gets alone, exactly."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.heads.native import NativeHead
from tests.heads.agreement import prompt
from tests.heads.oracle import (
    ernie4_5_moe,
    exaone_moe,
    mimo,
    mimo_v2_flash,
    qwen,
    step3p5,
)
from tests.heads.published import HIDDEN, Published, open_head

KINDS = {
    "qwen3_next": qwen.next_one,
    "qwen3_5": qwen.dense,
    "mimo": mimo.published,
    "mimo_v2_flash": mimo_v2_flash.published,
    "exaone_moe": exaone_moe.published,
    "step3p5": step3p5.published,
    "ernie4_5_moe": ernie4_5_moe.published,
}
LENGTHS = (9, 4, 13)
MORE = (2, 3, 1)
"""Pairs that come later: as after a verification, which takes back what was drafted."""


def rows(counts: tuple[int, ...], starts: tuple[int, ...]) -> tuple[mx.array, mx.array]:
    """True pairs of every row from its start on, right-padded."""
    width = max(counts)
    states = np.zeros((len(counts), width, HIDDEN), np.float32)
    tokens = np.zeros((len(counts), width), np.int64)
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        features, ids = prompt(20, seed=row)
        states[row, :count] = features[start : start + count]
        tokens[row, :count] = ids[start : start + count]
    return mx.array(states), mx.array(tokens)


def run(head: NativeHead, only: int | None = None) -> list[list[mx.array]]:
    """Two rounds of true pairs with a drafted one between; states of each row's real pairs."""
    chosen = range(len(LENGTHS)) if only is None else (only,)
    caches = SlotCaches(head, len(chosen))
    drafted = tuple(1 for _ in LENGTHS)
    result: list[list[mx.array]] = [[] for _ in chosen]
    for starts, counts in (((0, 0, 0), LENGTHS), (LENGTHS, drafted), (LENGTHS, MORE)):
        states, tokens = rows(counts, starts)
        pick = mx.array(list(chosen))
        width = max(counts[row] for row in chosen)
        span = Span(0, [starts[row] for row in chosen], [counts[row] for row in chosen])
        layers = caches.begin(span)
        own = head.feed(states[pick][:, :width], tokens[pick][:, :width], layers)
        caches.commit([True] * len(chosen))
        mx.eval(own, caches.arrays)
        for place, row in enumerate(chosen):
            result[place].append(own[place, : counts[row]])
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_among_others_is_a_row_alone(tmp_path: Path, kind: str) -> None:
    published: Published = KINDS[kind]()
    _, head = open_head(published.write(tmp_path))
    together = run(head)
    for row in range(len(LENGTHS)):
        (alone,) = run(head, only=row)
        for ours, theirs in zip(together[row], alone, strict=True):
            assert mx.array_equal(ours, theirs).item()
