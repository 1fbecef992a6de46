"""Ragged keys and values against a list a row; rollback, growth, windows, wiping."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.caching.footprint import GROWTH
from mtplx_kernel.caching.ragged import RaggedKVCache
from mtplx_kernel.caching.span import Span

HEADS, DIM = 2, 3


def block(number: float, rows: int, width: int) -> tuple[mx.array, mx.array]:
    """Keys and values in which every entry is another number."""
    size = rows * HEADS * width * DIM
    keys = mx.arange(size).reshape(rows, HEADS, width, DIM) + 1000.0 * number
    return keys, -keys


class Ledger:
    """What each slot should hold: one key a token, in plain lists."""

    def __init__(self, slots: int) -> None:
        self.keys: list[list[mx.array]] = [[] for _ in range(slots)]

    def write(self, span: Span, keys: mx.array) -> None:
        for row, (start, count) in enumerate(zip(span.starts, span.counts, strict=True)):
            held = self.keys[span.first + row]
            held[start:] = [keys[row, :, i] for i in range(count)]

    def expected(self, slot: int, length: int) -> mx.array:
        return mx.stack(self.keys[slot][:length], axis=1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_history_of_joins_rollbacks_and_widths(data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 4))
    cache, ledger = RaggedKVCache(slots), Ledger(slots)
    lengths = [0] * slots
    for number in range(data.draw(st.integers(1, 8))):
        first = data.draw(st.integers(0, slots - 1))
        rows = data.draw(st.integers(1, slots - first))
        covered = range(first, first + rows)
        # A row goes on, takes some tokens back, or is a new one that starts at 0.
        starts = [data.draw(st.integers(0, lengths[slot])) for slot in covered]
        counts = [data.draw(st.integers(1, 4)) for _ in covered]
        span = Span(first, starts, counts)
        keys, values = block(number, rows, span.width)
        cache.begin(span)
        shown_keys, shown_values = cache.update_and_fetch(keys, values)
        cache.commit([True] * rows)
        ledger.write(span, keys)
        assert shown_keys.shape == shown_values.shape == (rows, HEADS, span.end, DIM)
        for row, slot in enumerate(covered):
            # Slots outside the span keep what they had; padding counts for nothing.
            lengths[slot] = starts[row] + counts[row]
            assert mx.array_equal(
                shown_keys[row, :, : lengths[slot]], ledger.expected(slot, lengths[slot])
            )
        for slot in range(slots):
            if lengths[slot]:
                held_keys, held_values = cache.contents(slot, lengths[slot])
                assert mx.array_equal(held_keys, ledger.expected(slot, lengths[slot]))
                assert mx.array_equal(held_values, -held_keys)


@pytest.mark.parametrize("first", [0, 1])
def test_buffers_grow_and_keep_what_they_hold(first: int) -> None:
    cache = RaggedKVCache(2)
    for start in range(0, 3 * GROWTH, 100):
        cache.begin(Span(first, [start], [100]))
        cache.update_and_fetch(*block(start, 1, 100))
        cache.commit([True])
    assert cache.keys is not None
    held = cache.keys.shape[2]
    assert held % GROWTH == 0
    assert held >= 3 * GROWTH
    for start in range(0, 3 * GROWTH, 100):
        assert mx.array_equal(
            cache.contents(first, start + 100)[0][:, start:], block(start, 1, 100)[0][0]
        )
    assert cache.nbytes == 2 * 2 * HEADS * held * DIM * 4
    assert mx.all(cache.contents(1 - first, held)[0] == 0).item()


def test_a_growth_is_a_quarter_of_a_long_buffer() -> None:
    cache = RaggedKVCache(1)
    long = 16 * GROWTH
    for start, count in ((0, long), (long, 1)):
        cache.begin(Span(0, [start], [count]))
        cache.update_and_fetch(*block(start, 1, count))
    assert cache.keys is not None
    assert cache.keys.shape[2] == long + long // 4


def test_wiping_a_slot_leaves_its_neighbours() -> None:
    cache = RaggedKVCache(3)
    cache.clear(1)  # before the first forward there is nothing to wipe
    cache.begin(Span(0, [0, 0, 0], [4, 4, 4]))
    keys, values = block(1, 3, 4)
    keys[1] = float("nan")
    cache.update_and_fetch(keys, values)
    cache.clear(1)
    assert mx.array_equal(cache.contents(0, 4)[0], keys[0])
    assert mx.array_equal(cache.contents(2, 4)[1], values[2])
    assert all(bool(mx.all(a == 0)) for a in cache.contents(1, 4))


@pytest.mark.parametrize(
    ("start", "count", "window", "first_key", "mask"),
    [
        (0, 1, None, 0, "none"),
        (9, 1, None, 0, "none"),
        (3, 4, None, 0, "causal"),
        (0, 3, 5, 0, "causal"),
        (9, 1, 5, 5, "none"),
        (9, 3, 5, 5, "array"),
        (3, 3, 5, 0, "array"),
        (2, 3, 5, 0, "causal"),
    ],
)
def test_a_single_row_shows_only_keys_within_its_window(
    start: int, count: int, window: int | None, first_key: int, mask: str
) -> None:
    cache = RaggedKVCache(1, window)
    if start:
        cache.begin(Span(0, [0], [start]))
        cache.update_and_fetch(*block(0, 1, start))
    span = Span(0, [start], [count])
    cache.begin(span)
    made = cache.make_mask(count, window_size=window)
    keys, _ = cache.update_and_fetch(*block(1, 1, count))
    assert keys.shape[2] == span.end - first_key
    kind = "none" if made is None else made if isinstance(made, str) else "array"
    assert kind == mask
    if isinstance(made, mx.array):
        assert mx.array_equal(made, span.visible(window, first_key))
    plain = cache.make_mask(count, window_size=window, return_array=True)
    if mask == "none":
        assert plain is None  # as mlx-lm's caches: some layers take an array for a block
    else:
        assert isinstance(plain, mx.array)
        assert plain.shape == (count, keys.shape[2])


@pytest.mark.parametrize("window", [None, 3, 100])
def test_attention_over_rows_equals_each_row_alone(window: int | None) -> None:
    """With the cache's masks: padding, a slot's old keys and other rows' keys count nothing."""
    mx.random.seed(0)
    histories = [5, 1, 9]
    counts = [2, 3, 1]
    together = RaggedKVCache(3, window)
    dirt = mx.full((3, HEADS, 20, DIM), 50.0)
    together.begin(Span(0, [0, 0, 0], [20, 20, 20]))
    together.update_and_fetch(dirt, dirt)
    alone = [RaggedKVCache(1, window) for _ in histories]
    for row, length in enumerate(histories):
        keys, values = (mx.random.normal((1, HEADS, length, DIM)) for _ in range(2))
        for cache, slot in ((together, row), (alone[row], 0)):
            cache.begin(Span(slot, [0], [length]))
            cache.update_and_fetch(keys, values)
    new = [mx.random.normal((3, HEADS, 3, DIM)) for _ in range(3)]

    def attend(cache: RaggedKVCache, span: Span, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        cache.begin(span)
        mask = cache.make_mask(span.width, window_size=window)
        keys, values = cache.update_and_fetch(k, v)
        return mx.fast.scaled_dot_product_attention(q, keys, values, scale=1.0, mask=mask)

    batched = attend(together, Span(0, histories, counts), *new)
    for row, count in enumerate(counts):
        q, k, v = (a[row : row + 1, :, :count] for a in new)
        single = attend(alone[row], Span(0, [histories[row]], [count]), q, k, v)
        assert mx.allclose(batched[row, :, :count], single[0], rtol=1e-5, atol=1e-5)


def test_a_cache_outside_a_forward_says_so() -> None:
    with pytest.raises(RuntimeError, match="outside a forward"):
        RaggedKVCache(1).make_mask(1)


def test_the_offset_is_where_new_tokens_start() -> None:
    cache = RaggedKVCache(2)
    cache.begin(Span(1, [7], [2]))
    assert cache.offset == 7
    cache.begin(Span(0, [7, 3], [2, 2]))
    assert isinstance(cache.offset, mx.array)
    assert cache.offset.tolist() == [7, 3]


def test_an_only_slot_is_dropped_and_starts_anew() -> None:
    """Its buffers may depend on a forward that failed: nothing of them may be asked again."""
    cache = RaggedKVCache(1)
    cache.begin(Span(0, [0], [3]))
    cache.update_and_fetch(*block(0, 1, 3))
    cache.clear(0, 2)
    assert len(cache.arrays) == 2  # a part of a slot is zeroed in place
    cache.clear(0)
    assert cache.arrays == []
    cache.begin(Span(0, [0], [2]))
    keys, values = block(1, 1, 2)
    held = cache.update_and_fetch(keys, values)
    assert mx.array_equal(held[0], keys)
    assert mx.array_equal(held[1], values)
