"""Recurrent states: committed or put back row by row, never changed through another reference."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.caching.recurrent import RecurrentCache
from mtplx_kernel.caching.span import Span

BASE = 10.0


def forward(cache: RecurrentCache, span: Span, tokens: Sequence[Sequence[int]]) -> None:
    """A toy layer: its state is the number that the fed tokens write in decimal digits."""
    cache.begin(span)
    state = cache[0]
    state = mx.zeros((span.rows, 1)) if state is None else state
    lengths = span.counts if cache.lengths is None else cache.lengths.tolist()
    for i in range(span.width):
        fed = mx.array([[row[i] if i < len(row) else 0] for row in tokens])
        real = mx.array([[i < n] for n in lengths])
        state = mx.where(real, state * BASE + fed, state)
    cache[0] = state


def states(cache: RecurrentCache) -> list[float]:
    return [cache.contents(slot, 0)[0].item() for slot in range(cache.slots)]  # type: ignore[misc]


def test_a_wrong_draft_puts_its_row_back_and_no_other() -> None:
    cache = RecurrentCache(1, slots=3)
    forward(cache, Span(0, [0, 0, 0], [2, 1, 3]), [[1, 2], [3], [4, 5, 6]])
    cache.commit([True, True, True])
    assert states(cache) == [12, 3, 456]
    forward(cache, Span(0, [2, 1, 3], [1, 2, 1]), [[7], [8, 9], [7]])
    cache.commit([True, False, True])
    assert states(cache) == [127, 3, 4567]
    forward(cache, Span(0, [3, 1, 4], [1, 3, 1]), [[1], [8, 4, 5], [1]])
    cache.commit([False, True, False])
    assert states(cache) == [127, 3845, 4567]
    forward(cache, Span(0, [3, 4, 4], [1, 1, 1]), [[2], [2], [2]])
    cache.commit([False, False, False])
    assert states(cache) == [127, 3845, 4567]


def test_a_forward_that_is_never_committed_counts_for_nothing() -> None:
    cache = RecurrentCache(1, slots=1)
    forward(cache, Span(0, [0], [1]), [[5]])
    cache.commit([True])
    forward(cache, Span(0, [1], [2]), [[6, 7]])
    forward(cache, Span(0, [1], [1]), [[8]])
    cache.commit([True])
    assert states(cache) == [58]


def test_a_row_that_starts_anew_sees_no_state() -> None:
    cache = RecurrentCache(1, slots=2)
    forward(cache, Span(0, [0, 0], [1, 1]), [[5], [6]])
    cache.commit([True, True])
    cache.clear(1)
    forward(cache, Span(0, [1, 0], [1, 2]), [[1], [7, 8]])
    cache.commit([True, True])
    assert states(cache) == [51, 78]
    forward(cache, Span(1, [0], [1]), [[9]])
    cache.commit([True])
    assert states(cache) == [51, 9]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_history_of_rows_and_rollbacks(data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 3))
    cache = RecurrentCache(1, slots)
    held: list[list[int]] = [[] for _ in range(slots)]
    for _ in range(data.draw(st.integers(1, 6))):
        first = data.draw(st.integers(0, slots - 1))
        rows = data.draw(st.integers(1, slots - first))
        tokens = [
            data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)) for _ in range(rows)
        ]
        covered = held[first : first + rows]
        fresh = [data.draw(st.booleans()) for _ in range(rows)]
        starts = [0 if new else len(h) for h, new in zip(covered, fresh, strict=True)]
        forward(cache, Span(first, starts, [len(t) for t in tokens]), tokens)
        # A first block holds no drafts, so a row that starts is always right.
        whole = [start == 0 or data.draw(st.booleans()) for start in starts]
        cache.commit(whole)
        for row, right in enumerate(whole):
            if right:
                slot = first + row
                # Old digits are dropped: the numbers stay exact in float32.
                held[slot] = [*(held[slot] if starts[row] else []), *tokens[row]]
        if any(len(h) > 5 for h in held):
            break
        digits = [int("".join(map(str, h)) or 0) for h in held]
        assert states(cache) == digits


@pytest.mark.parametrize("slots", [1, 2])
def test_a_layer_that_writes_in_place_does_not_reach_the_committed_state(slots: int) -> None:
    cache = RecurrentCache(1, slots)
    forward(cache, Span(0, [0] * slots, [1] * slots), [[5]] * slots)
    cache.commit([True] * slots)
    cache.begin(Span(0, [1] * slots, [1] * slots))
    shown = cache[0]
    assert shown is not None
    shown[0] = 77.0
    shown -= 1.0
    cache[0] = shown
    cache.commit([False] * slots)
    assert states(cache) == [5.0] * slots


def test_lengths_are_given_only_where_rows_are_padded() -> None:
    cache = RecurrentCache(1, slots=2)
    cache.begin(Span(0, [0, 0], [2, 2]))
    assert cache.lengths is None
    cache.begin(Span(0, [0, 0], [1, 2]))
    assert cache.lengths is not None
    assert cache.lengths.tolist() == [1, 2]
    cache.advance(2)
    assert cache.lengths.tolist() == [1, 2]


def test_several_arrays_and_their_bytes() -> None:
    cache = RecurrentCache(2, slots=2)
    assert (cache.nbytes, cache.arrays, bool(cache)) == (0, [], True)
    cache.begin(Span(1, [0], [1]))
    assert (cache[0], cache[1]) == (None, None)
    cache[0], cache[1] = mx.ones((1, 4)), mx.full((1, 2, 3), 2.0)
    cache.commit([True])
    assert [a.tolist() for a in cache.contents(1, 1)] == [[1.0] * 4, [[2.0] * 3] * 2]
    assert all(bool(mx.all(a == 0)) for a in cache.contents(0, 0))
    assert cache.nbytes == (2 * 4 + 2 * 6) * 4


def test_a_layer_that_keeps_only_some_arrays() -> None:
    """An array that a forward leaves out stays as it was."""
    cache = RecurrentCache(2, slots=1)
    cache.begin(Span(0, [0], [1]))
    cache[0] = mx.ones((1, 2))
    cache.commit([True])
    cache.begin(Span(0, [1], [1]))
    cache[0] = 2 * mx.ones((1, 2))
    assert cache[1] is None
    cache.commit([True])
    assert [a.tolist() for a in cache.contents(0, 2)] == [[2.0, 2.0]]
