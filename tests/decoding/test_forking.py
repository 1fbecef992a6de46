"""Twins of a row: the ids are those of the row alone, in fewer cycles where a twin is right."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.prefix import PrefixCache
from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.forking import ForkFigures, ForkingStep
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.lookup import LookupDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from tests.decoding.heads import FailingHead
from tests.decoding.rows import as_ar, make_row, run, start
from tests.decoding.twins import (
    KINDS,
    LENGTH,
    PROMPT,
    SAMPLERS,
    TWO_WAYS,
    SecondHead,
    asked,
    forking_step,
    target,
    truth,
)
from tests.tiny import VOCABULARY


def fork(step: ForkingStep, row: Row, width: int, **options: Any) -> ForkFigures:
    """Decode a row to its end with forks of one width."""
    with step.forking([width]) as figures:
        assert run(step, [row], **options) == ["length"]
        step.release(row)
    assert step.caches.slots == 1
    return figures


class Twins:
    """Checks after every cycle that each slot holds the row's tokens and nothing else."""

    def __init__(self, step: ForkingStep, row: Row) -> None:
        self._step, self._row = step, row
        self.most = self.fed = 0

    def check(self, rows: list[Row]) -> None:
        step = self._step
        self.most = max(self.most, len(step._twins))
        for twin in step._twins if rows else []:
            assert twin.committed <= self._row.committed
            alike = [(step.caches, twin.committed)]
            if isinstance(step.drafter, HeadDrafter):
                known = step.drafter._state(twin)
                fed, self.fed = known.fed, max(self.fed, known.fed)
                assert known.seen == []
                assert fed <= step.drafter._state(self._row).fed
                alike.append((step.drafter.caches, fed))
            for caches, length in alike:
                assert isinstance(caches, SlotCaches)
                if caches.recurrent and length < self._row.committed:
                    continue  # its states are those of fewer tokens
                own = caches.contents(self._row.place, length)
                theirs = caches.contents(twin.place, length)
                assert all(mx.array_equal(a, b) for a, b in zip(own, theirs, strict=True))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("width", "depth", "wrong_every"), [(2, 1, 1), (2, 3, 5), (3, 2, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_row_alone(
    kind: str, width: int, depth: int, wrong_every: int, sampler: str
) -> None:
    known = truth(kind, sampler)
    step = forking_step(kind, SecondHead([known], wrong_every))
    row = asked(sampler, depth=depth)
    twins = Twins(step, row)
    figures = fork(step, row, width, after_cycle=twins.check)
    assert row.ids == known
    assert row.draft_error is None
    assert twins.most == width - 1
    assert twins.fed > 0 or depth == 1  # one draft needs no states of its own
    assert 0 < figures.fork_wins <= figures.fork_attempts
    assert figures.self_spec_rows_launched == (width - 1) * figures.fork_attempts
    assert figures.self_spec_rows_committed == figures.fork_wins


def counted(length: int, depth: int, wrong_every: int, *, forks: bool) -> ForkFigures:
    """What forks of two rows come to, drafting from the prompt's length on; by counting alone."""
    figures, at = ForkFigures(), len(PROMPT)
    end = at + length
    while at < end:
        drafts = min(depth, end - at - 1)
        wrong = [(at + i) % wrong_every == 0 for i in range(drafts)]
        own = [*wrong, True].index(True)
        # The twin's first draft is right where the row's is wrong; its others are drafted alike.
        twin = [*wrong[1:], True].index(True) + 1 if drafts and wrong[0] else 0
        if drafts and forks:
            figures.fork_attempts += 1
            figures.fork_wins += twin > own
        at += max(own, twin if forks else 0) + 1
        figures.self_spec_rows_launched += 1  # here: cycles
    return figures


@pytest.mark.parametrize(("depth", "wrong_every"), [(1, 1), (1, 3), (2, 4), (3, 5), (4, 6)])
@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_twin_that_is_right_saves_cycles(kind: str, depth: int, wrong_every: int) -> None:
    """The second candidate is always right, so a cycle takes what the better of two rows takes."""
    known = truth(kind)
    cycles = {}
    for forks in (False, True):
        step = forking_step(kind, SecondHead([known], wrong_every))
        row, seen = asked(depth=depth), []
        if forks:
            figures = fork(step, row, 2, after_cycle=seen.append)
            expected = counted(LENGTH, depth, wrong_every, forks=True)
            assert figures.fork_attempts == expected.fork_attempts
            assert figures.fork_wins == expected.fork_wins > 0
        else:
            run(step, [row], after_cycle=seen.append)
        cycles[forks] = len(seen)
        expected = counted(LENGTH, depth, wrong_every, forks=forks)
        assert cycles[forks] == expected.self_spec_rows_launched
        assert row.ids == known
    assert cycles[True] < cycles[False]


def two_ways(kind: str) -> tuple[tuple[int, ...], list[int]]:
    """A prompt that has gone on in two ways: last in a wrong one, before that as the model does.

    Returns it, and what the model makes of it.
    """
    words = range(20, 250)
    prompts = [(11, 12, word, 13, 14, 11, 12, 251, 15, 11, 12) for word in words]
    hidden = target(kind).forward(mx.array(prompts), None)[:, -1]
    says: Any = mx.argmax(target(kind).logits(hidden), axis=-1).tolist()
    prompt = next(p for p, word, said in zip(prompts, words, says, strict=True) if word == said)
    row = as_ar(make_row(prompt, max_tokens=LENGTH, ignore_eos=True))
    run(DecodeStep(target(kind), SlotCaches(target(kind).model), None), [row])
    assert row.ids[len(prompt)] == prompt[2]
    return prompt, row.ids


@pytest.mark.parametrize("kind", TWO_WAYS)
def test_texts_that_go_on_differently_are_verified_side_by_side(kind: str) -> None:
    prompt, known = two_ways(kind)
    step = forking_step(kind, None, LookupDrafter())
    row = start(step, make_row(prompt, depth=1, max_tokens=LENGTH, ignore_eos=True))
    with step.forking([4]) as figures:
        (outcome,) = step.cycle([row])
        # Two texts are two rows, however many are asked for, and the older one is right.
        assert figures == ForkFigures(1, 1, 1, 1, 2)
        assert (outcome.drafted, outcome.accepted) == (1, 1)
        assert [token.id for token in outcome.tokens] == known[len(prompt) : len(prompt) + 2]
        while row.room:
            step.cycle([row])
    assert row.ids == known


def test_one_text_only_is_verified_alone() -> None:
    prompt = (11, 12, 20, 13, 11, 12)
    alone = as_ar(make_row(prompt, max_tokens=4, ignore_eos=True))
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), None), [alone])
    step = forking_step("llama", None, LookupDrafter())
    row = start(step, make_row(prompt, depth=3, max_tokens=4, ignore_eos=True))
    with step.forking([2]) as figures:
        assert step.cycle([row])[0].drafted == 3
        assert figures == ForkFigures()
        while row.room:
            step.cycle([row])
    assert row.ids == alone.ids


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_head_beside_texts_forks_where_it_drafts(kind: str) -> None:
    known = truth(kind)
    head = HeadDrafter(head := SecondHead([known], 1), SlotCaches(head), VOCABULARY)
    step = forking_step(kind, None, CombinedDrafter(head, LookupDrafter()))
    row = asked(depth=2)
    assert fork(step, row, 2).fork_wins > 0
    assert row.ids == known


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_the_depth_of_a_fork_is_chosen_where_the_request_fixes_none(kind: str) -> None:
    known = truth(kind)
    step = forking_step(kind, SecondHead([known], 1))
    row = asked()
    with step.forking([1, 2, 3]) as figures:
        run(step, [row])
    assert row.ids == known
    assert figures.fork_wins > 0
    assert step._rates[True].missed(1) < 0.6  # the twin was right: it was believed to be in 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_is_fed_the_states_of_the_true_tokens(kind: str) -> None:
    """Whoever was accepted furthest, the head holds of the row what it holds of one alone."""
    known, held = truth(kind), []
    for width in (1, 2):
        step = forking_step(kind, SecondHead([known], 1))
        assert isinstance(step.drafter, HeadDrafter)
        row = start(step, asked(depth=2))
        with step.forking([width]) as figures:
            while row.room > 4:
                step.cycle([row])
            fed = step.drafter._state(row).fed
            held.append(step.drafter.caches.contents(row.place, min(fed, LENGTH)))
    assert figures.fork_wins > 0
    assert all(mx.array_equal(a, b) for a, b in zip(*held, strict=True))


class BrokenTwins(SecondHead):
    """Its logits are not finite for rows other than the first."""

    def logits(self, hidden: mx.array) -> mx.array:
        twins = mx.arange(hidden.shape[0])[:, None] > 0
        return mx.where(twins, mx.array(mx.nan), super().logits(hidden))


def test_a_twin_whose_drafts_fail_ends_the_drafting() -> None:
    known = truth("llama")
    step = forking_step("llama", BrokenTwins([known]))
    row = asked(depth=2)
    assert fork(step, row, 2) == ForkFigures(1, 0, 1, 0, 2)
    assert row.ids == known
    assert row.draft_error == "head: its logits are not finite"


@pytest.mark.parametrize("fault", ["raises", "nan"])
@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_head_that_fails_leaves_the_row_right(kind: str, fault: str) -> None:
    known = truth(kind)
    step = forking_step(kind, FailingHead([known], fault, after=15))
    row = asked(depth=3)
    figures = fork(step, row, 3)
    assert row.ids == known
    assert figures.fork_attempts > 0
    assert (row.draft_error or "").startswith("head: ")
    assert not row.drafting


def test_an_end_inside_a_twins_drafts_ends_the_row() -> None:
    known = truth("llama")
    stop = known[len(PROMPT) + 7]
    first = known.index(stop, len(PROMPT))
    step = forking_step("llama", SecondHead([known], 2))
    row = asked(depth=4, stop_token_ids=(stop,))
    with step.forking([2]):
        assert run(step, [row]) == ["stop"]
        step.release(row)
        assert step.caches.slots == 1
    assert row.ids == known[:first]


def test_a_forward_that_fails_is_raised_and_the_slots_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = truth("llama")
    step = forking_step("llama", SecondHead([known], 2))
    row = asked(depth=2)
    forward = step.target.forward

    def failing(tokens: mx.array, cache: Any) -> mx.array:
        if tokens.shape[0] == 2 and len(row.ids) > 15:
            raise MemoryError("no room")
        return forward(tokens, cache)

    with step.forking([2]) as figures:
        monkeypatch.setattr(step.target, "forward", failing)
        with pytest.raises(MemoryError, match="no room"):
            run(step, [row])
        monkeypatch.undo()
        assert step.recover()
        step.release(row, wipe=True)
        assert step.caches.slots == 1
        assert figures.fork_attempts > 1
        again = asked(depth=2)
        run(step, [again])
        assert again.ids == known


def test_twins_outlive_neither_their_row_nor_the_context() -> None:
    step = forking_step("llama", SecondHead([truth("llama")], 2))
    row = asked(depth=2)
    start(step, row)
    context = step.forking([3])
    context.__enter__()
    step.cycle([row])
    assert step.caches.slots == 4
    assert len(step._seats.rows) == 3
    error = KeyError("whatever ended the request")
    assert not context.__exit__(KeyError, error, None)
    assert step._seats.rows == [row]
    while row.room:
        step.cycle([row])
    assert row.ids == truth("llama")
    step.release(row)
    assert step.caches.slots == 1


def test_twins_that_were_lost_are_copied_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose caches had to be dropped is fed again; its twins hold nothing until then."""
    known = truth("llama")
    step = forking_step("llama", SecondHead([known], 2))
    row = asked(depth=2)
    twins = Twins(step, row)
    start(step, row)
    with step.forking([2]):
        step.cycle([row])
        monkeypatch.setattr(DecodeStep, "recover", lambda step: step.caches.drop() or False)
        assert not step.recover()
        monkeypatch.undo()
        row.rewind()
        while row.prefill_left:
            step.prefill([row], [row.prefill_left])
        while row.room:
            step.cycle([row])
            twins.check([row])
    assert twins.most == 1
    assert row.ids == known


@pytest.mark.parametrize("kind", TWO_WAYS)
def test_what_a_row_with_twins_leaves_in_the_prefix_cache_is_true(kind: str) -> None:
    known = truth(kind)
    store = PrefixCache(10**8)
    step = forking_step(kind, SecondHead([known], 1))
    row = asked(depth=2, max_tokens=12)
    with step.forking([2]) as figures:
        run(step, [row])
        step.save(row, store)
        step.release(row)
        assert figures.fork_wins > 0
        longer = make_row(row.ids, depth=2, max_tokens=LENGTH - 12, ignore_eos=True)
        step.admit(longer)
        assert step.restore(longer, store) > len(PROMPT)
        while longer.prefill_left:
            step.prefill([longer], [longer.prefill_left])
        while longer.room:
            step.cycle([longer])
    assert longer.ids == known
    assert longer.draft_error is None


def test_rows_in_company_do_not_fork() -> None:
    """Twins are for a row that has the model to itself; two rows are decoded as two rows."""
    prompts = (PROMPT, (90, 2))
    alone = [as_ar(make_row(p, max_tokens=LENGTH, ignore_eos=True)) for p in prompts]
    for row in alone:
        run(DecodeStep(target("llama"), SlotCaches(target("llama").model), None), [row])
    step = forking_step("llama", SecondHead([row.ids for row in alone], 2))
    rows = [
        make_row(p, number=n, depth=2, max_tokens=LENGTH, ignore_eos=True)
        for n, p in enumerate(prompts)
    ]
    with step.forking([2]) as figures:
        for row in rows:
            start(step, row)
        while all(row.room for row in rows):
            step.cycle(rows)
        assert figures == ForkFigures()
    assert all(a.ids[: len(b.ids)] == b.ids for a, b in zip(alone, rows, strict=True))


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_other_acceptance_rules_run_alone(rule: str) -> None:
    rows = [asked(temperature=0.8, acceptance=rule, depth=2) for _ in range(2)]
    for row, width in zip(rows, (1, 3), strict=True):
        step = forking_step("llama", SecondHead([truth("llama")], 2))
        assert fork(step, row, width) == ForkFigures()
    assert rows[0].ids == rows[1].ids
