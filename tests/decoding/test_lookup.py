"""LookupDrafter: what followed the same n-gram before is guessed to follow again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.decoding.depth import CostCurve, Costs, CostSurface
from mtplx_kernel.decoding.lookup import NGRAM_SIZES, PRIORS, LookupDrafter
from mtplx_kernel.decoding.row import Row
from tests.decoding.toy import toy_row


def row_of(ids: Sequence[int], number: int = 0) -> Row:
    return toy_row(tuple(ids), number=number)


def ids_of(drafter: LookupDrafter, rows: list[Row], depths: list[int]) -> list[list[int]]:
    return [ids or [] for ids in drafter.propose(rows, depths).known]


def guess(ids: Sequence[int], depth: int) -> list[int]:
    return ids_of(LookupDrafter(), [row_of(ids)], [depth])[0]


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
        grown = ids_of(drafter, [row], [4])[0]
        assert grown == guess(ids[:end], 4)


def test_rows_do_not_share_their_text() -> None:
    drafter = LookupDrafter()
    one, two = row_of([1, 2, 3, 1, 2], number=0), row_of([1, 2], number=1)
    assert ids_of(drafter, [one, two], [1, 1]) == [[3], []]
    two.ids += [9, 1, 2]
    assert ids_of(drafter, [one, two], [2, 3]) == [[3, 1], [9, 1, 2]]


def test_a_released_row_is_forgotten() -> None:
    drafter = LookupDrafter()
    row = row_of([1, 2, 3, 1, 2])
    assert ids_of(drafter, [row], [1]) == [[3]]
    drafter.release(row)
    assert ids_of(drafter, [row_of([1, 2])], [1]) == [[]]
    drafter.release(row_of([5], number=7))


STEEP = Costs(CostSurface(CostCurve((1, 2, 17), (1.0, 1.2, 4.2))))
"""Each draft costs 0.2 of a plain cycle, so one must be right more often than that."""


def free_row(ids: Sequence[int]) -> Row:
    """A row that leaves its depth to the drafter, with one token pending."""
    row = toy_row(tuple(ids), depth=None, max_tokens=999, context_length=999)
    row.committed = len(row.ids) - 1
    return row


def grow(row: Row, tokens: Sequence[int]) -> None:
    row.ids += tokens
    row.committed = len(row.ids) - 1


LOOP = [1, 2, 3, 1, 2]


def test_a_guess_that_keeps_failing_is_given_up() -> None:
    drafter = LookupDrafter(STEEP)
    row = free_row([1, 2])
    made = []
    for i in range(12):  # the pair 1, 2 again and again, each time before a number of its own
        made.append(len(ids_of(drafter, [row], [4])[0]))
        drafter.observe(row, made[-1], [100 + i])
        grow(row, [100 + i, 1, 2])
    assert made[0] == 0  # nothing came before
    assert made[1] > 0
    assert made[4:] == [0] * 8


def test_text_that_starts_to_repeat_is_found_without_drafting() -> None:
    """Guesses are held against the text also while none is worth a draft."""
    drafter = LookupDrafter(STEEP)
    row = free_row([1, 2])
    for i in range(12):
        drafter.observe(row, 0, [100 + i])
        grow(row, [100 + i, 1, 2])
    assert ids_of(drafter, [row], [4]) == [[]]
    for token in (7, 8, 9) * 6:
        drafter.observe(row, 0, [token])
        grow(row, [token])
    assert ids_of(drafter, [row], [4]) == [[7, 8, 9, 7]]


def test_a_guess_is_judged_up_to_the_first_wrong_token() -> None:
    drafter = LookupDrafter(STEEP)
    row = free_row(LOOP)
    drafter.observe(row, 0, [3, 1, 9, 2])  # guessed 3, 1, 2, 3
    rate = drafter._rates[2]
    assert (rate.hits, rate.tries) == (2.0, 3.0)
    assert drafter._rates[4].tries == 0.0  # no four-gram came before


def test_what_other_requests_saw_is_where_a_new_one_starts() -> None:
    drafter = LookupDrafter(STEEP)
    old = free_row(LOOP)
    assert ids_of(drafter, [old], [4])[0] != []
    for _ in range(40):
        drafter.observe(old, 1, [9])
    drafter.release(old)
    assert ids_of(drafter, [free_row(LOOP)], [4]) == [[]]


def test_a_fixed_depth_is_given_whatever_it_costs() -> None:
    drafter = LookupDrafter(STEEP)
    row = toy_row(tuple(LOOP), depth=3, max_tokens=50)
    for _ in range(40):
        assert ids_of(drafter, [row], [3]) == [[3, 1, 2]]
        drafter.observe(row, 3, [9])


def test_free_verifies_draft_as_far_as_allowed() -> None:
    assert ids_of(LookupDrafter(), [free_row(LOOP)], [7]) == [[3, 1, 2, 3, 1, 2, 3]]


def test_fewer_words_say_less() -> None:
    """A guess after four words is taken, one after two is not, before any was tried."""
    half = Costs(CostSurface(CostCurve((1, 2), (1.0, 1.0 + (PRIORS[4] + PRIORS[2]) / 2))))
    assert ids_of(LookupDrafter(half), [free_row([9, 8, 1, 2, 5, 9, 8, 1, 2])], [1]) == [[5]]
    assert ids_of(LookupDrafter(half), [free_row([1, 2, 5, 1, 2])], [1]) == [[]]


def test_what_a_guess_offers() -> None:
    drafter = LookupDrafter()
    ((source,),) = drafter.sources([free_row(LOOP)], [4])
    assert (source.offer.rates, source.offer.most, source.offer.least) == ([PRIORS[2]], 4, 0)
    assert source.copy(4) == [3, 1, 2, 3]
    fixed = toy_row(tuple(LOOP), depth=3)
    assert drafter.sources([fixed], [3])[0][0].offer.least == 3


def test_rules_that_are_not_coupled_copy_what_the_text_alone_says() -> None:
    """With a fixed depth: the longest n-gram, whatever other requests made of its size."""
    drafter = LookupDrafter()
    for _ in range(40):
        drafter._rates[4].observe(1, 0)
        drafter._rates[3].observe(1, 0)
    ids = [1, 2, 3, 4, 5, 9, 3, 4, 8, 1, 2, 3, 4]
    for rule, guess in (("coupled", [8]), ("rejection", [5])):
        row = toy_row(tuple(ids), depth=1, temperature=1.0, acceptance=rule)
        assert ids_of(drafter, [row], [1]) == [guess]
        drafter.release(row)


def test_sizes_are_judged_one_by_one() -> None:
    """The four-gram fails, so the guess falls back to a shorter one that promises more."""
    drafter = LookupDrafter(STEEP)
    row = free_row([1, 2, 3, 4, 5, 1, 2, 3, 4])
    assert ids_of(drafter, [row], [1]) == [[5]]
    for n in (4, 3):
        for _ in range(10):
            drafter._rates[n].observe(1, 0)
            drafter._text(row).rates[n].observe(1, 0)
    row.ids[:] = [1, 2, 3, 4, 5, 9, 3, 4, 8, 1, 2, 3, 4]
    row.committed = len(row.ids) - 1
    drafter._text(row).indexed = 0
    assert plainly(row.ids, 1) == [5]
    assert ids_of(drafter, [row], [1]) == [[8]]
