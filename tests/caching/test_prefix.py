"""Stored sequences: the longest beginning is found, the least used goes, and bytes stay bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.caching.prefix import LEAST, HeadMark, Mark, Prefix, PrefixCache, Saved
from mtplx_kernel.caching.ragged import RaggedKVCache
from mtplx_kernel.caching.recurrent import RecurrentCache
from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.caching.span import Span
from tests.tiny import build

TOKEN = 8
"""Bytes a token of a made-up sequence: one key and one value of float32."""


def text(length: int, seed: int = 0) -> list[int]:
    return [random.Random(f"{seed} {i}").randrange(1000) for i in range(length)]


def column(ids: Sequence[int]) -> mx.array:
    return mx.array([float(i) for i in ids]).reshape(1, 1, -1, 1)


def stored(ids: Sequence[int], *, fed: int | None = None, marks: Sequence[int] = ()) -> Saved:
    """Keys are the ids, values their negatives; with `marks` it is recurrent, the ids its state."""
    ends = marks or [len(ids)]

    def head(end: int) -> HeadMark | None:
        if fed is None:
            return None
        here = min(fed, end)
        return HeadMark(here, column(ids[here:end])[0] if here < end else None)

    return Saved(
        ids=tuple(ids),
        buffers=[[column(ids), -column(ids)]],
        head_buffers=None if fed is None else [[column(ids[:fed])]],
        marks=tuple(Mark(n, [[mx.array([float(n)])]] if marks else [], head(n)) for n in ends),
        by_length=not marks,
    )


def length(found: Prefix | None) -> int:
    return 0 if found is None else found.length


def test_the_longest_beginning_is_found() -> None:
    cache = PrefixCache(10**6)
    base = text(50)
    cache.keep(stored([*base[:20], *text(30, 1)]))
    cache.keep(stored([*base[:30], *text(5, 2)]))
    cache.keep(stored(text(60, 3)))
    found = cache.find(base)
    assert found is not None
    assert found.length == 30
    assert found.buffers[0][0][0, 0, :30, 0].tolist() == base[:30]
    assert length(cache.find(text(40, 4))) == 0


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_the_last_token_is_left_to_decode(extra: int) -> None:
    cache = PrefixCache(10**6)
    cache.keep(stored(text(20 + extra)))
    assert length(cache.find(text(20))) == 19
    assert length(cache.find(text(20)[:1])) == 0
    assert length(cache.find([])) == 0


def test_what_is_hardly_shared_is_not_worth_it() -> None:
    cache = PrefixCache(10**6)
    cache.keep(stored(text(20)))
    for shared in (1, LEAST - 1, LEAST):
        found = cache.find([*text(shared), *text(10, 1)])
        assert length(found) == (shared if shared >= LEAST else 0)


@pytest.mark.parametrize(
    ("agreed", "expected"), [(30, 20), (20, 20), (19, 10), (10, 10), (9, 0), (0, 0)]
)
def test_recurrent_states_are_taken_up_at_their_marks_only(agreed: int, expected: int) -> None:
    cache = PrefixCache(10**6)
    cache.keep(stored(text(25), marks=[10, 20, 25]))
    found = cache.find([*text(25)[:agreed], *text(20, 1)] if agreed < 25 else text(25))
    assert length(found) == expected
    if found is not None:
        (state,) = found.mark.states[0]
        assert state is not None
        assert state.item() == expected


@pytest.mark.parametrize(
    ("agreed", "position", "fed"),
    [
        (20, 20, 17),  # the end: the states that the head has not worked off are there
        (18, 18, 17),
        (17, 16, 16),  # pair 16 needs the state of token 16, which is fed again for it
        (12, 11, 11),
    ],
)
def test_what_a_head_knows_is_cut_with_the_rest(agreed: int, position: int, fed: int) -> None:
    """The pair at a position ends with the token after it, so that one has to agree too."""
    cache = PrefixCache(10**6)
    cache.keep(stored(text(20), fed=17))
    asked = [*text(20)[:agreed], *text(10, 1)]
    found = cache.find(asked, drafting=True)
    assert found is not None
    assert found.mark.head is not None
    assert (found.length, found.mark.head.fed) == (position, fed)
    assert length(cache.find(asked)) == agreed, "a row that does not draft needs no pairs"


def test_a_mark_whose_last_pair_is_fed_needs_a_token_more() -> None:
    cache = PrefixCache(10**6)
    sequence = text(21)
    mark = Mark(20, [[mx.array([20.0])]], HeadMark(20))
    head: Any = [[column(sequence[:20])]]
    cache.keep(Saved(tuple(sequence), [[column(sequence[:20])]], head, (mark,), by_length=False))
    assert length(cache.find([*sequence, 1], drafting=True)) == 20
    assert length(cache.find([*sequence[:20], 1001, 1], drafting=True)) == 0
    assert length(cache.find([*sequence[:20], 1001, 1])) == 20


def test_rows_that_draft_need_an_entry_with_a_head() -> None:
    cache = PrefixCache(10**6)
    cache.keep(stored(text(20)))
    assert length(cache.find(text(30), drafting=True)) == 0
    assert cache.wants(text(20), 20, drafting=True)
    cache.keep(stored(text(20), fed=19))
    assert length(cache.find(text(30), drafting=True)) == 20
    assert cache.snapshot()["entries"] == 1, "the one with a head does all that the other did"
    cache.keep(stored(text(22)))
    assert cache.snapshot()["entries"] == 2
    assert length(cache.find(text(30), drafting=True)) == 20
    assert length(cache.find(text(30))) == 22


def test_the_one_used_longest_ago_goes() -> None:
    cache = PrefixCache(3 * 20 * TOKEN)
    for seed in (1, 2, 3):
        cache.keep(stored(text(20, seed)))
    assert length(cache.find([*text(20, 1), 0])) == 20
    cache.keep(stored(text(20, 4)))
    assert [length(cache.find([*text(20, s), 0])) for s in (1, 2, 3, 4)] == [20, 0, 20, 20]
    assert not cache.wants(text(20, 1), 20)  # asking for it to be kept uses it too
    cache.keep(stored(text(40, 5)))
    assert [length(cache.find([*text(20, s), 0])) for s in (1, 3, 4, 5)] == [20, 0, 0, 20]
    assert cache.snapshot() == {
        "entries": 2,
        "bytes": 60 * TOKEN,
        "limit_bytes": 60 * TOKEN,
        "hits": 6,
        "misses": 3,
        "tokens_saved": 6 * 20,
        "evictions": 3,
        "last_error": None,
    }


def test_a_turn_replaces_the_turns_before_it() -> None:
    cache = PrefixCache(10**6)
    for end in (20, 35, 60):
        cache.keep(stored(text(end)))
    assert cache.snapshot()["entries"] == 1
    assert cache.nbytes == 60 * TOKEN
    assert cache.snapshot()["evictions"] == 0
    assert length(cache.find([*text(20), *text(9, 1)])) == 20


def test_a_turn_inherits_the_marks_before_it_thinned_out() -> None:
    cache = PrefixCache(10**6)
    cache.keep(stored(text(20), marks=[9, 20]))
    cache.keep(stored(text(30), marks=[20, 25, 30]))
    cache.keep(stored(text(50), marks=[44, 50]))
    assert cache.snapshot()["entries"] == 1
    # 25 and 30 are less than twice 20, and 44 and 50 are the last turn's own.
    found = [length(cache.find([*text(n), *text(9, 1)])) for n in (9, 19, 20, 30, 44, 50)]
    assert found == [9, 9, 20, 20, 44, 50]


def test_what_is_here_already_is_not_wanted() -> None:
    cache = PrefixCache(1000)
    assert cache.wants(text(20), 20, nbytes=1000)
    assert not cache.wants(text(20), 20, nbytes=1001)
    assert not cache.wants(text(LEAST), LEAST - 1)
    cache.keep(stored(text(20)))
    assert [cache.wants(text(30), n) for n in (10, 20, 21, 22)] == [False, False, False, True]
    assert cache.wants([*text(18), 1001, 1002], 20)


def test_what_is_too_large_is_not_kept_and_drives_nobody_out() -> None:
    cache = PrefixCache(30 * TOKEN)
    cache.keep(stored(text(20)))
    assert cache.keep(stored(text(31))) is None
    assert cache.keep(stored(text(31, 1))) is None
    assert length(cache.find(text(40))) == 20
    assert cache.nbytes == 20 * TOKEN


def test_forget_clear_and_what_failed() -> None:
    cache = PrefixCache(10**6)
    first, second = cache.keep(stored(text(20, 1))), cache.keep(stored(text(20, 2)))
    assert first is not None
    assert second is not None
    cache.forget(first)
    cache.forget(first)
    assert [length(cache.find([*text(20, s), 0])) for s in (1, 2)] == [0, 20]
    cache.failed("MemoryError: none")
    assert cache.snapshot()["last_error"] == "MemoryError: none"
    cache.limit(0)
    assert (cache.nbytes, cache.snapshot()["entries"]) == (0, 0)
    assert length(cache.find(text(30, 2))) == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_history_stays_within_its_bytes_and_finds_the_longest(data: st.DataObject) -> None:
    limit = data.draw(st.integers(20, 120))
    cache = PrefixCache(limit * TOKEN)
    kept: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 15))):
        ids = data.draw(st.lists(st.integers(0, 1), min_size=LEAST, max_size=40))
        longest = max(
            (_agreed(ids[:-1], old) for key, old in kept.items() if key in cache._entries),
            default=0,
        )
        assert length(cache.find(ids)) == (longest if longest >= LEAST else 0)
        if data.draw(st.booleans()):
            key = cache.keep(stored(ids))
            assert (key is None) == (len(ids) > limit)
            if key is not None:
                kept[key] = ids
        assert cache.nbytes == sum(len(e.ids) * TOKEN for e in cache._entries.values())
        assert cache.nbytes <= cache.limit_bytes


def _agreed(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def fill(cache: RaggedKVCache, slot: int, count: int, value: float = 1.0) -> None:
    cache.begin(Span(slot, [0], [count]))
    new = value * mx.arange(1.0, count + 1).reshape(1, 1, count, 1) * mx.ones((1, 1, count, 64))
    cache.update_and_fetch(new, -new)
    mx.eval(cache.arrays)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("count", [5, 256])
def test_saved_keys_are_a_copy_of_just_their_length(slots: int, count: int) -> None:
    """A view would keep the whole buffer alive; of a full buffer of one slot, it would be it."""
    caches = SlotCaches(build("llama"), slots)
    for layer in caches.layers:
        fill(layer, 0, 256)
        fill(layer, slots - 1, 256, 2.0)
    saved = caches.save(slots - 1, count)
    mx.eval(saved)
    before, held = mx.get_active_memory(), caches.nbytes
    caches.drop()
    assert before - mx.get_active_memory() >= held
    for keys, values in saved:
        assert keys.shape == values.shape == (1, 1, count, 64)
        assert keys[0, 0, :, 0].tolist() == [2.0 * (i + 1) for i in range(count)]


def test_what_is_restored_is_not_shared_with_the_store() -> None:
    cache = RaggedKVCache(1)
    fill(cache, 0, 256)
    saved = cache.take(0, 0, 256)
    fresh = RaggedKVCache(1)
    fresh.restore(0, 256, saved)
    fill(fresh, 0, 10, 50.0)
    fill(cache, 0, 10, 70.0)
    assert saved[0][0, 0, :, 0].tolist() == [i + 1.0 for i in range(256)]


def test_restored_keys_go_where_the_row_is_and_nowhere_else() -> None:
    source, cache = RaggedKVCache(1), RaggedKVCache(2)
    fill(source, 0, 300)
    fill(cache, 0, 20, 3.0)
    cache.restore(1, 290, source.take(0, 0, 300))
    keys, values = cache.contents(1, 290)
    assert keys[0, :, 0].tolist() == [i + 1.0 for i in range(290)]
    assert mx.array_equal(values, -keys)
    assert cache.contents(0, 20)[0][0, :, 0].tolist() == [3.0 * (i + 1) for i in range(20)]
    assert not cache.contents(0, 291)[0][0, 20:].any()
    assert not cache.contents(1, 291)[0][0, 290:].any(), "one position more was restored"


def test_a_state_comes_back_into_any_slot() -> None:
    cache = RecurrentCache(2, slots=2)
    cache.begin(Span(0, [0], [1]))
    cache[0] = mx.ones((1, 3))
    cache.commit([True])
    saved = cache.save(0)
    assert saved[1] is None
    cache.restore(1, saved)
    assert [cache.contents(slot, 0)[0].tolist() for slot in (0, 1)] == [[1.0] * 3] * 2
    cache.begin(Span(1, [1], [1]))
    shown = cache[0]
    assert shown is not None
    shown += 4.0
    cache[0] = shown
    cache.commit([True])
    assert [cache.contents(slot, 0)[0].tolist() for slot in (0, 1)] == [[1.0] * 3, [5.0] * 3]
    assert saved[0] is not None
    assert saved[0].tolist() == [[1.0] * 3]


@pytest.mark.parametrize("kind", ["sliding", "qwen3_next", "deepseek_v32"])
def test_a_models_caches_come_back(kind: str) -> None:
    model = build(kind)
    source, other = SlotCaches(model), SlotCaches(model, 3)
    ids = mx.array([text(20)]) % 250
    model(ids, cache=source.begin(Span(0, [0], [20])))
    source.commit([True])
    other.restore(2, 20, source.save(0, 20), source.save_states(0))
    pairs = zip(source.contents(0, 20), other.contents(2, 20), strict=True)
    assert all(np.array_equal(np.array(a), np.array(b)) for a, b in pairs)
    assert sum(a.nbytes for a in source.contents(0, 20)) == sum(
        a.nbytes
        for layer in [*source.save(0, 20), *source.save_states(0)]
        for a in layer
        if a is not None
    )
