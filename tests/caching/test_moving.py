"""Rows of all kinds of caches that move, are copied, and stay when the slots grow or shrink."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.footprint import GROWTH
from mtplx_kernel.caching.slots import Move, SlotCaches, StockCaches, UnsupportedCache
from mtplx_kernel.caching.span import Span
from tests.tiny import build

KINDS = ("llama", "gemma3", "qwen3_next", "deepseek_v3", "deepseek_v32")
ROWS = ([5, 6, 7, 8], [9, 3], [1, 2, 3], [40, 41, 42, 43, 44])


@cache
def model(kind: str) -> Any:
    return build(kind)


def filled(kind: str, rows: Sequence[Sequence[int]] = ROWS) -> SlotCaches:
    """Caches whose slots were fed one row each, one after the other."""
    caches = SlotCaches(model(kind), slots=len(rows))
    for slot, ids in enumerate(rows):
        model(kind)(mx.array([ids]), cache=caches.begin(Span(slot, [0], [len(ids)])))
        mx.eval(caches.arrays)
        caches.commit([True])
    return caches


def holds(caches: SlotCaches, slot: int, kind: str, ids: Sequence[int]) -> bool:
    """Whether a slot holds just what feeding these ids gives."""
    alone = filled(kind, [ids])
    found, expected = caches.contents(slot, len(ids)), alone.contents(0, len(ids))
    return len(found) == len(expected) and all(
        bool(mx.array_equal(a, b)) for a, b in zip(found, expected, strict=True)
    )


def move(source: int, slot: int) -> Move:
    return Move(source, slot, len(ROWS[source]))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_move_all_at_once(kind: str) -> None:
    caches = filled(kind)
    caches.move([move(0, 1), move(1, 3), move(3, 0)])
    for slot, source in enumerate((3, 0, 2, 1)):
        assert holds(caches, slot, kind, ROWS[source])


@pytest.mark.parametrize("kind", KINDS)
def test_slots_come_and_go(kind: str) -> None:
    caches = filled(kind, ROWS[:2])
    caches.resize(4, 4)
    assert caches.slots == 4
    caches.move([move(0, 3)])
    assert holds(caches, 3, kind, ROWS[0])
    assert holds(caches, 1, kind, ROWS[1])
    caches.resize(2, 4)
    assert holds(caches, 1, kind, ROWS[1])
    assert caches.nbytes == filled(kind, ROWS[:2]).nbytes
    caches.resize(1, 0)
    assert (caches.slots, caches.nbytes) == (1, 0)


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_a_resize_keeps_no_positions_that_no_row_needs(kind: str) -> None:
    caches = filled(kind, [ROWS[0], [7] * (GROWTH + 1)])
    assert caches.room == 2 * GROWTH
    caches.resize(4, len(ROWS[0]))
    assert caches.room == GROWTH
    assert holds(caches, 0, kind, ROWS[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_a_row_is_copied_to_other_slots(kind: str) -> None:
    """The slots held the row's first two tokens already."""
    caches = filled(kind, [ROWS[0], ROWS[0][:2], ROWS[0][:2]])
    caches.copy(0, [1, 2], 2, 4)
    for slot in range(3):
        assert holds(caches, slot, kind, ROWS[0])


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_dropped_starts_anew(kind: str) -> None:
    caches = filled(kind, ROWS[:2])
    caches.drop()
    assert (caches.slots, caches.nbytes) == (2, 0)
    model(kind)(mx.array([ROWS[2]]), cache=caches.begin(Span(1, [0], [3])))
    caches.commit([True])
    assert holds(caches, 1, kind, ROWS[2])


def test_before_the_first_forward_there_is_nothing_to_move() -> None:
    caches = SlotCaches(model("qwen3_next"))
    caches.resize(2, 5)
    caches.move([Move(0, 1, 0)])
    assert (caches.slots, caches.nbytes, caches.room) == (2, 0, 0)


def test_mlx_lms_own_caches_hold_one_row() -> None:
    caches = StockCaches(model("llama"))
    caches.resize(1, 0)
    with pytest.raises(UnsupportedCache, match="one row"):
        caches.resize(2, 5)


@pytest.mark.parametrize(("first", "rows"), [(0, 1), (2, 1), (0, 3), (1, 2), (0, 4)])
def test_new_tokens_are_written_in_place(first: int, rows: int) -> None:
    """A forward over any slots takes far less memory than a copy of a buffer would."""
    caches = SlotCaches(model("llama"), slots=4)
    long = 16 * GROWTH
    for layer in caches.layers:
        layer.keys, layer.values = mx.zeros((4, 2, long, 16)), mx.zeros((4, 2, long, 16))
    mx.eval(caches.arrays)
    buffer = caches.layers[0].keys.nbytes
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for start in range(3):
        span = Span(first, [start] * rows, [1] * rows)
        mx.eval(model("llama")(mx.array([[5]] * rows), cache=caches.begin(span)), caches.arrays)
    assert mx.get_peak_memory() - before < buffer // 4


def test_a_move_copies_only_what_the_row_holds() -> None:
    caches = SlotCaches(model("llama"), slots=4)
    long = 16 * GROWTH
    for layer in caches.layers:
        layer.keys, layer.values = mx.zeros((4, 2, long, 16)), mx.zeros((4, 2, long, 16))
    mx.eval(caches.arrays)
    buffer = caches.layers[0].keys.nbytes
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    moves = [Move(0, 3, long // 2), Move(2, 0, long // 2)]
    caches.move(moves)
    mx.eval(caches.arrays)
    taken = len(moves) * len(caches.arrays) * buffer // 8
    assert mx.get_peak_memory() - before < taken + buffer
