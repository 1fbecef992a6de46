"""LookupDrafter: what followed the same n-gram before is guessed to follow again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.decoding.depth import PROBE_EVERY, CostCurve
from mtplx_kernel.decoding.drafting import NGRAM_SIZES, LookupDrafter
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


STEEP = CostCurve((1, 2, 17), (1.0, 1.4, 7.4))
"""Each draft costs 0.4 of a plain cycle, so one must be right more often than that."""


def free_row(ids: Sequence[int]) -> Row:
    """A row that leaves its depth to the drafter, with one token pending."""
    row = toy_row(tuple(ids), depth=None, max_tokens=50)
    row.committed = len(row.ids) - 1
    return row


def grow(row: Row, ids: list[int]) -> None:
    row.ids, row.committed = ids, len(ids) - 1


def pairs(count: int) -> list[int]:
    """The pair 1, 2 again and again, each time behind a number of its own."""
    return [token for i in range(count) for token in (100 + i, 1, 2)]


def test_a_guess_that_keeps_failing_is_only_probed() -> None:
    drafter = LookupDrafter(STEEP)
    row = free_row(pairs(2))
    made = []
    for count in range(2, 32):
        grow(row, pairs(count))
        drafts = drafter.propose([row], [4])[0]
        made.append(len(drafts))
        drafter.observe(row, len(drafts), 0)
    silent = made.index(0)
    assert 1 <= silent <= 3
    step = -(-PROBE_EVERY // 3)  # three tokens a pair
    probed = [i for i, drafted in enumerate(made) if i > silent and drafted]
    assert probed == list(range(silent - 1 + step, len(made), step))
    assert all(made[i] == 1 for i in probed)


def test_a_guess_that_was_not_verified_stays_due() -> None:
    """While a forward is in flight guesses are made and dropped: that must not use them up."""
    drafter = LookupDrafter(STEEP)
    row = free_row(pairs(2))
    for _ in range(4):
        drafter.observe(row, len(drafter.propose([row], [4])[0]), 0)
    grow(row, pairs(2 + PROBE_EVERY))
    assert [len(drafter.propose([row], [4])[0]) for _ in range(3)] == [1, 1, 1]
    drafter.observe(row, 1, 0)
    assert drafter.propose([row], [4]) == [[]]


def test_right_guesses_bring_it_back() -> None:
    drafter = LookupDrafter(STEEP)
    row = free_row([1, 2, 3, 1, 2])
    for _ in range(4):
        drafter.observe(row, len(drafter.propose([row], [4])[0]), 0)
    assert drafter.propose([row], [4]) == [[]]
    for _ in range(6):
        drafter.observe(row, 1, 1)
    assert drafter.propose([row], [4])[0][:1] == [3]


def test_what_other_requests_saw_is_where_a_new_one_starts() -> None:
    drafter = LookupDrafter(STEEP)
    old = free_row([1, 2, 3, 1, 2])
    assert drafter.propose([old], [4])[0] != []
    for _ in range(40):
        drafter.observe(old, 1, 0)
    drafter.release(old)
    assert drafter.propose([free_row([1, 2, 3, 1, 2])], [4]) == [[]]


def test_a_fixed_depth_is_given_whatever_it_costs() -> None:
    drafter = LookupDrafter(STEEP)
    row = toy_row((1, 2, 3, 1, 2), depth=3, max_tokens=50)
    for _ in range(40):
        assert drafter.propose([row], [3]) == [[3, 1, 2]]
        drafter.observe(row, 3, 0)


def test_free_verifies_draft_as_far_as_allowed() -> None:
    assert LookupDrafter().propose([free_row([1, 2, 3, 1, 2])], [7]) == [[3, 1, 2, 3, 1, 2, 3]]


def test_a_cycle_without_drafts_teaches_nothing() -> None:
    drafter = LookupDrafter(STEEP)
    row = free_row([1, 2, 3, 1, 2])
    before = drafter.propose([row], [4])
    for _ in range(50):
        drafter.observe(row, 0, 0)
    assert drafter.propose([row], [4]) == before != [[]]


def test_sizes_are_judged_one_by_one() -> None:
    """The four-gram fails, so the guess falls back to a shorter one that is still worth it."""
    ids = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    drafter = LookupDrafter(STEEP)
    row = free_row(ids)
    assert drafter.propose([row], [1]) == [[5]]
    for _ in range(10):
        drafter.observe(row, 1, 0)
    grow(row, [*ids, 7, 9, 9, 2, 3, 4, 8, 1, 2, 3, 4])
    assert plainly(row.ids, 1) == [7]
    assert drafter.propose([row], [1]) == [[8]]
