"""LookupDrafter: what followed the same n-gram before is guessed to follow again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.decoding.drafting import NGRAM_SIZES, PROBE_EVERY, LookupDrafter
from mtplx_kernel.decoding.row import Row
from tests.decoding.toy import toy_row


def row_of(ids: Sequence[int], slot: int = 0) -> Row:
    return toy_row(tuple(ids), slot=slot)


def guess(ids: Sequence[int], depth: int) -> list[int]:
    return LookupDrafter().propose([row_of(ids)], [depth])[0]


CASES: dict[str, tuple[list[int], int, list[int]]] = {
    "what came after": ([1, 2, 3, 4, 5, 9, 1, 2], 3, [3, 4, 5]),
    "the last time counts": ([1, 2, 3, 7, 1, 2, 4, 8, 1, 2], 2, [4, 8]),
    "a longer match counts more": ([1, 2, 3, 4, 5, 0, 2, 3, 4, 6, 0, 1, 2, 3, 4], 1, [5]),
    "a loop goes on past the end": ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),
    "one token repeated": ([7, 7, 7], 4, [7, 7, 7, 7]),
    "nothing repeats": ([1, 2, 3, 4, 5], 4, []),
    "one token is no match": ([1, 2, 3, 1], 4, []),
    "one token": ([1], 4, []),
    "no depth": ([1, 2, 1, 2], 0, []),
}


@pytest.mark.parametrize("case", CASES)
def test_guesses(case: str) -> None:
    ids, depth, expected = CASES[case]
    assert guess(ids, depth) == expected


def plainly(ids: list[int], depth: int) -> list[int]:
    """The same rule by search: the latest earlier place of the longest n-gram, copied in a loop."""
    for n in NGRAM_SIZES:
        for start in range(len(ids) - 1, n - 1, -1):
            if ids[start - n : start] == ids[-n:]:
                return [ids[start + i % (len(ids) - start)] for i in range(depth)]
    return []


@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=40), depth=st.integers(0, 8))
def test_guesses_equal_a_plain_search(ids: list[int], depth: int) -> None:
    assert guess(ids, depth) == plainly(ids, depth)


@given(ids=st.lists(st.integers(0, 2), min_size=2, max_size=40), cuts=st.sets(st.integers(1, 39)))
def test_an_index_that_grows_equals_a_fresh_one(ids: list[int], cuts: set[int]) -> None:
    drafter = LookupDrafter()
    row = row_of(ids[:1])
    for end in sorted(cuts | {len(ids)}):
        row.ids = ids[:end]
        grown = drafter.propose([row], [4])[0]
        assert grown == guess(ids[:end], 4)


def test_rows_do_not_share_their_text() -> None:
    drafter = LookupDrafter()
    one, two = row_of([1, 2, 3, 1, 2], slot=0), row_of([1, 2], slot=1)
    assert drafter.propose([one, two], [1, 1]) == [[3], []]
    two.ids += [9, 1, 2]
    assert drafter.propose([one, two], [2, 3]) == [[3, 1], [9, 1, 2]]


def test_a_released_row_is_forgotten() -> None:
    drafter = LookupDrafter()
    row = row_of([1, 2, 3, 1, 2])
    assert drafter.propose([row], [1]) == [[3]]
    drafter.release(row)
    assert drafter.propose([row_of([1, 2])], [1]) == [[]]
    drafter.release(row_of([5], slot=7))


def test_a_size_that_keeps_failing_is_only_probed() -> None:
    """After three wrong guesses in a row one in PROBE_EVERY is made; right ones bring it back."""
    drafter = LookupDrafter()
    row = row_of([1, 2, 3, 1, 2])
    made = []
    for _ in range(2 * PROBE_EVERY + 6):
        drafts = drafter.propose([row], [1])[0]
        made.append(bool(drafts))
        drafter.observe(row, len(drafts), 0)
    silent = made.index(False)
    assert 1 <= silent <= 6
    assert made[silent:].count(True) == 2
    assert made[silent + PROBE_EVERY - 1] is True

    drafts = []
    while not drafts:
        drafts = drafter.propose([row], [1])[0]
    for _ in range(3):
        drafter.observe(row, 1, 1)
    assert drafter.propose([row], [1])[0] == [3]


def test_a_cycle_without_drafts_teaches_nothing() -> None:
    drafter = LookupDrafter()
    row = row_of([1, 2, 3, 1, 2])
    for _ in range(50):
        drafter.observe(row, 0, 0)
    assert drafter.propose([row], [1]) == [[3]]


def test_sizes_are_believed_one_by_one() -> None:
    """The four-gram fails, so the guess falls back to a shorter one that is still believed."""
    ids = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    drafter = LookupDrafter()
    row = row_of(ids)
    assert drafter.propose([row], [1]) == [[5]]
    for _ in range(10):
        drafter.observe(row, 1, 0)
    row.ids = [*ids, 7, 9, 9, 2, 3, 4, 8, 1, 2, 3, 4]
    assert plainly(row.ids, 1) == [7]
    assert drafter.propose([row], [1]) == [[8]]
