"""A forward's geometry: offsets, positions and masks, against plain loops."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.caching.span import Span

ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=4)


def span_of(rows: list[tuple[int, int]], first: int = 0) -> Span:
    return Span(first, [start for start, _ in rows], [count for _, count in rows])


def test_one_row() -> None:
    span = Span(2, [5], [3])
    assert (span.rows, span.width, span.end, span.slots) == (1, 3, 8, slice(2, 3))
    assert span.offset == 5
    assert not span.ragged
    assert span.lengths.tolist() == [3]
    assert span.positions.tolist() == [[5, 6, 7]]
    assert span.visible(None).tolist() == [
        [True] * 6 + [False] * 2,
        [True] * 7 + [False],
        [True] * 8,
    ]
    assert span.visible(2, first_key=4).tolist() == [
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]


def test_ragged_rows() -> None:
    span = Span(1, [4, 0], [1, 3])
    assert (span.rows, span.width, span.end, span.slots) == (2, 3, 7, slice(1, 3))
    assert isinstance(span.offset, mx.array)
    assert span.offset.tolist() == [4, 0]
    assert span.ragged
    assert span.lengths.tolist() == [1, 3]
    assert span.positions.tolist() == [[4, 5, 6], [0, 1, 2]]


def test_the_caller_may_change_its_lists() -> None:
    starts, counts = [3], [1]
    span = Span(0, starts, counts)
    starts[0] = counts[0] = 9
    assert (span.starts, span.counts, span.offset) == ([3], [1], 3)


@settings(deadline=None)
@given(rows=ROWS, first_slot=st.integers(0, 3), window=st.none() | st.integers(1, 6))
def test_a_token_sees_the_keys_up_to_its_own_within_the_window(
    rows: list[tuple[int, int]], first_slot: int, window: int | None
) -> None:
    span = span_of(rows, first_slot)
    first_key = 0 if window is None else max(0, min(span.starts) + 1 - window)
    mask: Any = span.visible(window, first_key)
    if len(rows) == 1:
        mask = mask[None, None]
    assert mask.shape == (len(rows), 1, span.width, span.end - first_key)
    expected = [
        [
            [
                key <= start + i and (window is None or key > start + i - window)
                for key in range(first_key, span.end)
            ]
            for i in range(span.width)
        ]
        for start, _ in rows
    ]
    assert mask[:, 0].tolist() == expected


def test_layers_of_one_forward_share_their_masks() -> None:
    span = Span(0, [3, 1], [2, 2])
    assert span.visible(None) is span.visible(None)
    assert span.visible(4) is not span.visible(None)
    assert span.visible(4).shape == span.visible(None).shape
