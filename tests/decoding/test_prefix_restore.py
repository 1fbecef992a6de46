"""Rows that go on from stored caches: the ids, the caches and the drafts of rows that did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtplx_kernel.caching.prefix import PrefixCache
from tests.decoding.heads import TrueHead
from tests.decoding.stored import (
    CHUNK,
    FIRST,
    SAMPLERS,
    SECOND,
    SYSTEM,
    Bench,
    asked,
    head_for,
    head_of,
    pair_of,
    plain,
    same,
    states_of,
    target,
)
from tests.heads.test_generation import opened
from tests.tiny import CONFIGS

RECURRENT = ("qwen3_next", "qwen3_5", "nemotron_h")
# mlx-lm computes one token of these by another formula than a block of several.
TWO_FORMULAS = ("deepseek_v3", "deepseek_v32", "nemotron_h")


def expected(kind: str, agreed: int, drafter: str) -> int:
    """Tokens that are found where so many agree, in a sequence that goes on otherwise."""
    if kind in RECURRENT:
        return max(n for n in (CHUNK, 2 * CHUNK, len(FIRST) - 1) if n <= agreed)
    return agreed if drafter == "none" else agreed - 1


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("drafter", ["none", "right", "wrong"])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_a_common_beginning(kind: str, drafter: str, sampler: str) -> None:
    """A second prompt of the same beginning, and the first one again: the ids stay the same."""
    found, store = [], PrefixCache(10**9)
    for prompt in (FIRST, SECOND, FIRST):
        truth = plain(kind, prompt, sampler)
        row = asked(prompt, sampler, depth=3)
        found.append(Bench.of(target(kind), head_for(drafter, truth), store).serve(row))
        assert row.ids == truth
        assert row.draft_error is None
    again = len(FIRST) - 1 if drafter == "none" or kind in RECURRENT else len(FIRST) - 2
    assert found == [0, expected(kind, len(SYSTEM), drafter), again]


@pytest.mark.parametrize("drafter", ["none", "right", "wrong"])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_next", "deepseek_v3"])
def test_the_next_turn_of_a_chat(kind: str, drafter: str) -> None:
    """It goes on from all that the caches held at the end of the turn before."""
    truth = plain(kind, FIRST, "sampled")
    then = (*truth, 60, 61, 62)
    last = plain(kind, then, "sampled")
    bench = Bench.of(target(kind), head_for(drafter, last))
    row = asked(FIRST, "sampled", depth=3)
    bench.serve(row)
    assert row.ids == truth
    assert row.committed > len(FIRST)
    bench = Bench.of(target(kind), head_for(drafter, last), bench.store)
    turn = asked(then, "sampled", depth=3)
    assert bench.serve(turn) == row.committed
    assert turn.ids == last
    assert bench.store.snapshot()["entries"] == 1


@pytest.mark.parametrize("kind", [k for k in CONFIGS if k not in TWO_FORMULAS])
def test_caches_and_drafts_are_those_of_a_row_that_fed_all(kind: str) -> None:
    truth = plain(kind, SECOND, "greedy")
    first = Bench.of(target(kind), TrueHead([truth], 3))
    first.begin(asked(FIRST, depth=3))
    fresh, bench = pair_of(target(kind), TrueHead([truth], 3), first.store)
    rows = [asked(SECOND, depth=3) for _ in range(2)]
    fresh.begin(rows[0], stored=False)
    assert bench.begin(rows[1]) > 0
    same(fresh, bench, rows)
    while rows[0].room:
        outcomes = [b.step.cycle([row])[0] for b, row in zip((fresh, bench), rows, strict=True)]
        assert outcomes[0].drafted == outcomes[1].drafted
        assert outcomes[0].tokens == outcomes[1].tokens
        same(fresh, bench, rows)
    known, found = states_of(fresh, bench, rows)
    assert known.fed == found.fed > len(SECOND)
    assert rows[0].ids == rows[1].ids == truth
    assert fresh.drafts == bench.drafts != []


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("kind", ["step3p5", "mimo", "qwen3_5", "nemotron_h", "deepseek_v3"])
def test_real_heads_draft_the_same(tmp_path: Path, kind: str, turn: bool) -> None:
    """A chain of three heads, one that is fed states before the norm, and odd layers."""
    model, head = opened(kind, tmp_path)
    first = asked([i % 30 for i in (*SYSTEM, *SYSTEM, *FIRST)], depth=2)
    store = Bench.of(model, head)
    store.serve(first)
    fresh, bench = pair_of(model, head, store.store)
    then = (*first.ids, 7, 8, 9) if turn else (*first.ids[: 2 * len(SYSTEM) + 3], 7, 8, 9)
    rows = [asked(then, depth=2) for _ in range(2)]
    fresh.begin(rows[0], stored=False)
    assert bench.begin(rows[1]) >= (first.committed if turn else 4 * CHUNK)
    if kind not in TWO_FORMULAS:
        same(fresh, bench, rows)
    for b, row in zip((fresh, bench), rows, strict=True):
        b.decode(row)
    assert rows[1].ids == rows[0].ids
    assert rows[1].draft_error is None
    assert fresh.drafts == bench.drafts != []
    if kind not in TWO_FORMULAS:
        same(fresh, bench, rows)


@pytest.mark.parametrize("rest", [(70, 71), ()])
def test_pairs_that_another_row_does_not_share(rest: tuple[int, ...]) -> None:
    """After a partial accept the head was fed tokens that the states have not seen yet."""
    truth = plain("qwen3_next", FIRST, "greedy")
    head = TrueHead([truth])
    first = Bench.of(target("qwen3_next"), head)
    row = asked(FIRST, depth=3)
    first.begin(row)
    first.step.cycle([row])
    head._wrong_every = 3
    while head_of(first)._state(row).fed <= row.committed:
        first.step.cycle([row])
        assert row.room
    assert row.committed > len(FIRST)
    first.step.save(row, first.store)
    # One token after the last committed one agrees, or none at all.
    agreed = row.ids[: row.committed + len(rest) // 2]
    then = (*agreed, 70, 71, 72)
    last = plain("qwen3_next", then, "greedy")
    fresh, bench = pair_of(target("qwen3_next"), TrueHead([last]), first.store)
    rows = [asked(then, depth=3) for _ in range(2)]
    fresh.begin(rows[0], stored=False)
    assert bench.begin(rows[1]) == (row.committed if rest else len(FIRST) - 1)
    same(fresh, bench, rows)
    for b, r in zip((fresh, bench), rows, strict=True):
        b.decode(r)
    assert rows[0].ids == rows[1].ids == last
    same(fresh, bench, rows)


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_row_that_joins_others(kind: str) -> None:
    """Its caches come back into a slot beside a row that decodes, and that one goes on."""
    other = (90, 2, 4)
    truths = [plain(kind, p, "sampled") for p in (other, SECOND)]
    first = Bench.of(target(kind), TrueHead(truths, 3))
    first.serve(asked(FIRST, "sampled", depth=3))
    bench = Bench.of(target(kind), TrueHead(truths, 3), first.store, lookup=True)
    one, two = asked(other, "sampled", depth=3), asked(SECOND, "sampled", depth=3, number=1)
    bench.begin(one)
    bench.step.cycle([one])
    assert bench.begin(two) >= 2 * CHUNK
    live = [one, two]
    while live:
        bench.step.cycle(live)
        live = [row for row in live if row.room]
    assert [one.ids, two.ids] == truths
    then = (*SECOND, 60, 61)
    fresh, late = pair_of(target(kind), TrueHead([plain(kind, then, "greedy")]), bench.store)
    rows = [asked(then, depth=3) for _ in range(2)]
    fresh.begin(rows[0], stored=False)
    assert late.begin(rows[1]) == len(SECOND) - 1, "what was kept in slot 1"
    same(fresh, late, rows)
