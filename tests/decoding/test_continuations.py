"""Where a text has gone on before: each next token once, the longest match and the latest first."""

from __future__ import annotations

import random

from mtplx_kernel.decoding.continuations import Continuations


def test_each_way_on_is_guessed_once_the_latest_first() -> None:
    ids = [1, 2, 7, 5, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2]
    text = Continuations(ids)
    assert text.besides([9, 9, 9], 5) == [[7, 6, 1], [8, 5, 1]]
    assert text.besides([7, 0], 5) == [[8, 5]]
    assert text.besides([9], 1) == [[7]]
    assert text.besides([9], 0) == []


def test_more_words_in_common_go_first() -> None:
    text = Continuations([3, 1, 2, 7, 4, 1, 2, 8, 3, 1, 2])
    assert text.besides([9], 2) == [[7], [8]]  # 3 1 2 came before 7, only 1 2 before 8
    # No more than four words count: both places share them, and the later goes first.
    text = Continuations([9, 5, 4, 3, 2, 7, 0, 5, 4, 3, 2, 8, 9, 5, 4, 3, 2])
    assert text.besides([6], 2) == [[8], [7]]


def test_a_copy_that_reaches_the_end_goes_on_with_its_beginning() -> None:
    assert Continuations([1, 2, 3, 1, 2]).besides([9] * 5, 1) == [[3, 1, 2, 3, 1]]


def test_a_text_that_is_too_short_has_no_way_on() -> None:
    for ids in ([], [1], [1, 2], [1, 1]):
        assert Continuations(ids).besides([9], 3) == []
    assert Continuations([1, 1, 1]).besides([9], 3) == [[1]]


def test_a_text_that_grows_is_what_it_would_be_read_at_once() -> None:
    source = random.Random(2)
    ids: list[int] = []
    grown = Continuations(ids)
    for _ in range(300):
        ids += source.choices(range(4), k=source.randint(1, 3))
        assert grown.besides([0, 0], 4) == Continuations(list(ids)).besides([0, 0], 4)
