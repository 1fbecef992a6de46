"""PoolDrafter: what followed the same words in any row of a cohort is guessed to follow again."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding import pool as pool_module
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.depth import FLAT, Costs, CostSurface, HeadCost
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.lookup import NGRAM_SIZES, LookupDrafter
from mtplx_kernel.decoding.pool import PoolDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar, make_row, run
from tests.decoding.toy import toy_row
from tests.tiny import VOCABULARY, build


def pooled(ids: Sequence[int], number: int, pool: str | None = "a", depth: int = 4) -> Row:
    row = toy_row(tuple(ids), number=number, depth=depth)
    row.pool = pool
    return row


def guesses(drafter: PoolDrafter | LookupDrafter, rows: list[Row]) -> list[list[int]]:
    return [ids or [] for ids in drafter.propose(rows, [row.depth for row in rows]).known]


def test_a_row_copies_from_another_one() -> None:
    rows = [pooled([1, 2, 3, 4, 5, 6, 7], 0), pooled([9, 2, 3], 1)]
    assert guesses(PoolDrafter(), rows) == [[], [4, 5, 6, 7]]


def test_and_no_further_than_its_end() -> None:
    """A text that repeats itself goes on in a loop; another one just ends."""
    rows = [pooled([1, 2, 3, 4], 0), pooled([9, 2, 3], 1)]
    assert guesses(PoolDrafter(), rows) == [[], [4]]


def test_outputs_are_copied_as_they_come() -> None:
    drafter, rows = PoolDrafter(), [pooled([1, 2], 0), pooled([9, 2, 3], 1)]
    assert guesses(drafter, rows) == [[], []]
    drafter.observe(rows[0], 0, [3])
    rows[0].ids += [3, 4]
    assert guesses(drafter, rows) == [[], [4]]


def test_other_pools_and_rows_without_one_are_not_read() -> None:
    text = [1, 2, 3, 4, 5, 6, 7]
    drafter = PoolDrafter()
    rows = [pooled(text, 0, "a"), pooled([9, 2, 3], 1, "b"), pooled([8, 2, 3], 2, None)]
    assert guesses(drafter, rows) == [[], [], []]
    rows = [pooled(text, 3, None), pooled([9, 2, 3], 4, "a")]
    assert guesses(drafter, rows) == [[], [4, 5, 6, 7]]  # row 0 is still in pool a


def test_its_own_text_comes_first() -> None:
    rows = [pooled([1, 2, 3, 4, 5], 0), pooled([2, 3, 7, 8, 2, 3], 1)]
    assert guesses(PoolDrafter(), rows)[1] == [7, 8, 2, 3]


def test_what_the_pool_offers_is_from_other_rows() -> None:
    rows = [pooled([1, 2, 3, 4, 5], 0), pooled([2, 3, 7, 8, 2, 3], 1)]
    drafter = PoolDrafter()
    assert [s.copy(1) for s in drafter.sources(rows, [4, 4])[1]] == [[7], [4]]
    drafter.observe(rows[1], 0, [4])  # the pool was right, the row's own text was not
    assert (drafter._rates[2].hits, drafter.own._rates[2].hits) == (1.0, 0.0)


def test_but_a_longer_match_elsewhere_counts_more() -> None:
    rows = [pooled([8, 6, 2, 3, 4, 5], 0), pooled([2, 3, 7, 8, 6, 2, 3], 1)]
    assert guesses(PoolDrafter(), rows)[1] == [4, 5]


def test_the_last_other_text_counts() -> None:
    texts = [1, 2, 3, 4], [5, 2, 3, 6], [9, 2, 3]
    rows = [pooled(text, number) for number, text in enumerate(texts)]
    assert guesses(PoolDrafter(), rows)[2] == [6]


def test_what_followed_most_often_counts_more() -> None:
    texts = [1, 2, 3, 4, 5], [5, 2, 3, 4, 6], [7, 2, 3, 8], [9, 2, 3]
    rows = [pooled(text, number) for number, text in enumerate(texts)]
    assert guesses(PoolDrafter(), rows)[3] == [4, 6]


def test_a_pool_lives_as_long_as_its_rows() -> None:
    drafter = PoolDrafter()
    one, two = pooled([1, 2, 3, 4, 5], 0), pooled([7, 7, 8], 1)
    guesses(drafter, [one, two])
    drafter.release(one)
    two.ids += [2, 3]
    assert guesses(drafter, [two]) == [[4, 5]]  # what ended is still there for the others
    drafter.release(two)
    assert guesses(drafter, [pooled([6, 2, 3], 2)]) == [[]]
    drafter.release(pooled([5], 9, "never seen"))


def test_a_row_that_is_prefilled_keeps_its_pool() -> None:
    drafter = PoolDrafter()
    one, two = pooled([1, 2, 3, 4, 5], 0), pooled([6, 2, 3], 1)
    drafter.see([one, two], [0, 0], mx.zeros((2, 1, 1)))
    drafter.release(one)
    assert guesses(drafter, [two]) == [[4, 5]]


def test_guesses_are_judged_by_every_token() -> None:
    drafter = PoolDrafter()
    rows = [pooled([1, 2, 3, 4, 5, 6], 0), pooled([9, 2, 3], 1)]
    guesses(drafter, rows)
    drafter.observe(rows[1], 0, [4, 5, 8])  # two right, then a wrong one
    assert (drafter._rates[2].hits, drafter._rates[2].tries) == (2.0, 3.0)
    assert drafter._rates[4].tries == 0.0  # no four words are in both
    assert drafter.own._rates[2].tries == 0.0  # nor twice in the row's own text


def test_a_pool_that_misleads_is_given_up() -> None:
    drafter = PoolDrafter(Costs(CostSurface()))
    drafter.costs = Costs(CostSurface(FLAT, {2: FLAT}, 0.0))
    rows = [pooled([1, 2, 3, 4, 5, 6], 0, depth=8), pooled([9, 2, 3], 1, depth=8)]
    for row in rows:
        row.params = toy_row((1,), depth=None).params
    steep = Costs(CostSurface(lanes={2: type(FLAT)((1, 2), (1.0, 1.2))}))
    drafter.costs = steep
    made = []
    for i in range(30):
        made.append(len(guesses(drafter, rows)[1]))
        drafter.observe(rows[1], made[-1], [50 + i])
        rows[1].ids += [50 + i, 2, 3]
        rows[0].ids += [2, 3, 90 + i]
        for row in rows:
            row.committed = len(row.ids) - 1
    assert made[0] > 0
    assert made[-5:] == [0] * 5


def plainly(texts: list[list[int]], row: int, depth: int) -> list[int]:
    """By search: own text, then the others', by falling size, as the offers are ordered.

    Every place has a say here.
    """
    ids = texts[row]
    found = LookupDrafter().sources([pooled(ids, 0, None, depth)], [depth])[0]
    ways = [(s.offer.rates[0], s.copy(depth)) for s in found]
    others = [text for r, text in enumerate(texts) if r != row]
    for n in NGRAM_SIZES if len(ids) >= 2 else ():
        places = [
            (text, end)
            for text in others
            for end in range(n, len(text))
            if len(ids) >= n and text[end - n : end] == ids[-n:]
        ]
        after = [text[end] for text, end in places]
        if places:
            often = max(after.count(token) for token in after)
            text, end = [
                p for p, token in zip(places, after, strict=True) if after.count(token) == often
            ][-1]
            ways.append((pool_module.PRIORS[n], text[end : end + depth]))
    return max(ways, key=lambda way: _promise(*way), default=(0, []))[1]


def _promise(rate: float, ids: list[int]) -> float:
    return sum(rate**k for k in range(1, len(ids) + 1))


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(texts=st.lists(tokens, min_size=2, max_size=4), depth=st.integers(1, 4))
def test_guesses_equal_a_plain_search(texts: list[list[int]], depth: int) -> None:
    rows = [pooled(ids, number, depth=depth) for number, ids in enumerate(texts)]
    drafter = PoolDrafter()
    last = len(rows) - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "PLACES", 99)
        drafter._join(rows)
        (found,) = guesses(drafter, [rows[last]])
    assert found == plainly(texts, last, depth)


@given(texts=st.lists(tokens, min_size=2, max_size=3), cuts=st.sets(st.integers(1, 11)))
def test_a_pool_that_grows_knows_what_a_fresh_one_knows(
    texts: list[list[int]], cuts: set[int]
) -> None:
    """Whatever the order in which the texts grow; each place is there once."""
    rows = [pooled([], number) for number in range(len(texts))]
    drafter = PoolDrafter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "PLACES", 99)
        for end in [*sorted(cuts), 12]:
            for row, text in zip(rows, texts, strict=True):
                row.ids += text[len(row.ids) : end]
                drafter._join([row])
    found = [
        (key, rows.index(next(row for row in rows if row.ids is text)), end)
        for key, places in drafter._pools["a"].new.items()
        for text, end in places
    ]
    assert sorted(found) == sorted(
        (tuple(text[end - n : end]), number, end)
        for number, text in enumerate(texts)
        for n in NGRAM_SIZES
        for end in range(n, len(text))
    )


def test_old_places_have_no_say() -> None:
    """Five followed nine times and six five times, but of the last eight times five times."""
    rows = [pooled([2, 3, 5] * 9 + [2, 3, 6] * 5 + [1], 0), pooled([9, 2, 3], 1, depth=1)]
    assert guesses(PoolDrafter(), rows)[1] == [6]


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MOST_PLACES", 60)
    drafter = PoolDrafter()
    long, short = pooled([], 0), pooled([3, 950, 951], 1)
    for first in range(0, 1000, 10):
        long.ids += range(first, first + 10)
        drafter._join([long])
        pool = drafter._pools["a"]
        assert sum(map(len, (*pool.new.values(), *pool.old.values()))) <= 60
    assert guesses(drafter, [short]) == [[]]  # long forgotten
    short.ids += [990, 991]
    assert guesses(drafter, [short]) == [[992, 993, 994, 995]]


def test_rules_that_are_not_coupled_do_not_read_the_pool_at_a_fixed_depth() -> None:
    """Their ids would depend on the neighbours."""
    for rule, found in (("coupled", [4, 5]), ("rejection", [])):
        one, two = pooled([1, 2, 3, 4, 5], 0), pooled([9, 2, 3], 1)
        two.params = toy_row((1,), depth=4, temperature=1.0, acceptance=rule).params
        assert guesses(PoolDrafter(), [one, two])[1] == found


def test_beside_a_head() -> None:
    """The row that finds its words in the other one copies; the head drafts for that one."""
    one, two = make_row([1, 2, 3, 4, 5, 6, 7, 8], number=0), make_row([9, 2, 3], number=1)
    head = TrueHead([one.ids, two.ids])
    costs = Costs(CostSurface(), {1: HeadCost(0.1, 0.1)})
    made = HeadDrafter(head, SlotCaches(head, 2), VOCABULARY, costs)
    drafter = CombinedDrafter(made, PoolDrafter(costs))
    assert drafter.name == "head, lookup"
    for row in (one, two):
        row.pool, row.committed = "a", len(row.ids) - 1
    drafter.see([one, two], [0, 0], mx.zeros((2, 7, 4)))
    for _ in range(4):
        drafter.text.observe(two, 0, [4, 5, 6, 7, 8])
    drafts = drafter.propose([one, two], [3, 3])
    assert drafts.known == [None, [4, 5, 6]]
    assert drafts.counts[0] > 0


def test_ids_do_not_depend_on_the_pool() -> None:
    target = Target(build("llama"))
    prompts = ([5, 6, 7, 8, 9, 40, 41], [90, 5, 6, 7], [3, 5, 6, 7, 8])
    settings = {"max_tokens": 20, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    plain = [as_ar(make_row(p, number=n, **settings)) for n, p in enumerate(prompts)]
    for row in plain:
        run(DecodeStep(target, SlotCaches(target.model), None), [row])
    rows = [make_row(p, number=n, **settings) for n, p in enumerate(prompts)]
    for row in rows:
        row.pool = "a"
    drafter = PoolDrafter()
    run(DecodeStep(target, SlotCaches(target.model), drafter), rows)
    assert [row.ids for row in rows] == [row.ids for row in plain]
    assert sum(drafter._rates[n].tries for n in NGRAM_SIZES) > 0
