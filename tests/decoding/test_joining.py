"""Rows that come, wait, decode together in any order and go: each has the ids it has alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.recurrent import RecurrentCache
from mtplx_kernel.caching.slots import Move, SlotCaches, StockCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.drafters import GUESSES, ForcedDrafter
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar, make_row, run, start
from tests.tiny import VOCABULARY, build

STOP = "".join(chr(0x4E00 + i) for i in (1, 2))
REQUESTS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((5, 6, 7, 8, 9, 40, 41), {"depth": 3}),
    ((90, 12), {"temperature": 0.8, "top_p": 0.9, "seed": 2, "depth": 1}),
    ((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9), {"max_tokens": 9, "depth": 5}),
    ((60, 61, 62), {"temperature": 0.7, "repetition_penalty": 1.3, "penalty_context": 6}),
    ((33, 34, 35, 36), {"temperature": 1.5, "top_k": 20, "seed": 3, "stop": STOP}),
    ((7, 2, 7, 2, 7, 2), {"mode": "ar", "stop_token_ids": (7, 100, 130, 200)}),
    ((80, 81), {"repetition_penalty": 1.2, "depth": 2, "max_tokens": 30}),
)
KINDS = ("llama", "sliding", "gemma3", "qwen3_next", "qwen3_5", "deepseek_v3", "deepseek_v32")


@cache
def target(kind: str) -> Target:
    return Target(build(kind))


def row_of(number: int, **changes: Any) -> Row:
    prompt, options = REQUESTS[number]
    return make_row(prompt, number, **{"ignore_eos": True, **options, **changes})


@cache
def alone(kind: str, number: int) -> list[int]:
    """What a request has by itself, in mode ar, on mlx-lm's own caches, prefilled in one chunk."""
    row = as_ar(row_of(number))
    run(DecodeStep(target(kind), StockCaches(target(kind).model), None), [row], chunk=100)
    return row.output


def truths(kind: str) -> dict[str, list[int]]:
    return {f"row-{i}": alone(kind, i) for i in range(len(REQUESTS))}


def serve(step: DecodeStep, kind: str, seed: int, most: int = 4, cancel: bool = True) -> list[Row]:
    """Run all requests at random: who joins, feeds, decodes with whom, and who is cancelled."""
    source = random.Random(f"{kind} {seed}")
    waiting = [row_of(i) for i in range(len(REQUESTS))]
    source.shuffle(waiting)
    served: list[Row] = []
    live: list[Row] = []
    while waiting or live:
        while waiting and len(live) < most and source.random() < 0.5:
            live.append(waiting.pop())
            step.admit(live[-1])
        feeding = [row for row in live if row.prefill_left and source.random() < 0.7]
        if feeding:
            counts = [source.randint(1, min(6, row.prefill_left)) for row in feeding]
            step.prefill(feeding, counts)
        ready = [row for row in live if not row.prefill_left]
        again = source.random() < 0.7
        if source.random() < 0.2:  # some row waits for a turn
            again, ready = False, ready[1:]
        source.shuffle(ready)
        outcomes = step.cycle(ready, again=again) if ready else []
        assert [o.row for o in outcomes] == ready
        assert [o.error for o in outcomes] == [None] * len(ready)
        gone = [o.row for o in outcomes if o.ended is not None]
        if cancel and ready and source.random() < 0.05:
            gone = gone or [ready[0]]
        for row in gone:
            live.remove(row)
            step.release(row)
            served.append(row)
    return served


def check(rows: Sequence[Row], kind: str) -> None:
    """Every row has what it has alone, up to where it was cancelled."""
    for row in rows:
        expected = alone(kind, int(row.request_id[4:]))
        assert row.output == expected[: len(row.output)], row.request_id


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_come_and_go_have_their_own_ids(kind: str, seed: int) -> None:
    guess = ("random", "right", "wrong_at_1")[seed]
    drafter = ForcedDrafter(truths(kind), GUESSES[guess])
    step = DecodeStep(target(kind), SlotCaches(target(kind).model), drafter)
    rows = serve(step, kind, seed)
    check(rows, kind)
    assert len(rows) == len(REQUESTS)
    assert sum(len(row.output) for row in rows) > 70
    assert step.caches.slots == 1


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_rows_without_drafts(kind: str) -> None:
    """Forwards are launched ahead for the same rows, and dropped when others decode."""
    step = DecodeStep(target(kind), SlotCaches(target(kind).model), None)
    check(serve(step, kind, seed=7, most=7), kind)


@pytest.mark.parametrize("kind", ["llama", "qwen3_next", "deepseek_v3"])
def test_the_head_goes_where_its_rows_go(kind: str) -> None:
    """It knows a row by its cache, and is right about every draft if that is the row's own."""
    drafter, right = head_drafter(kind)
    step = DecodeStep(target(kind), SlotCaches(target(kind).model), drafter)
    rows = serve(step, kind, seed=1, most=7, cancel=False)
    check(rows, kind)
    assert [row.draft_error for row in rows] == [None] * len(REQUESTS)
    assert sum(count for count, _ in right) > 30
    assert all(count == accepted for count, accepted in right)


def head_drafter(kind: str) -> tuple[HeadDrafter, list[tuple[int, int]]]:
    """A head that knows all requests, and what was drafted and accepted."""
    texts = [[*prompt, *alone(kind, i)] for i, (prompt, _) in enumerate(REQUESTS)]
    head = TrueHead(texts)
    drafter = HeadDrafter(head, SlotCaches(head), VOCABULARY)
    observed: list[tuple[int, int]] = []
    observe = drafter.observe

    def note(row: Row, drafted: int, tokens: Sequence[int]) -> None:
        # What ends a row is accepted too; the drafts after it are none of the text.
        left = len(texts[int(row.request_id[4:])]) - len(row.ids)
        if left > drafted:
            observed.append((drafted, len(tokens) - 1))
        observe(row, drafted, tokens)

    drafter.observe = note  # type: ignore[method-assign]
    return drafter, observed


@pytest.mark.parametrize("kind", [*KINDS])
def test_prompts_of_different_lengths_are_fed_in_one_forward(kind: str) -> None:
    step = DecodeStep(target(kind), SlotCaches(target(kind).model), None)
    rows = [as_ar(row_of(i)) for i in (0, 2, 3, 1)]
    for row in rows[:3]:
        step.admit(row)
    step.prefill(rows[:3], [6, 4, 1])
    step.admit(rows[3])
    # One is done with its prompt, one goes on in it, one begins, in another order.
    step.prefill([rows[3], rows[2], rows[1], rows[0]], [1, 1, 10, 0])
    assert [row.prefill_left for row in rows] == [0, 0, 0, 0]
    for _ in range(8):
        step.cycle(rows)
    check(rows, kind)


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_the_head_sees_no_padding_of_shorter_prompts(kind: str) -> None:
    prompts = [tuple((7 * i + n) % 250 for i in range(60)) for n in (1, 5)]
    head = TrueHead([list(prompt) for prompt in prompts])
    drafter = HeadDrafter(head, SlotCaches(head), VOCABULARY)
    step = DecodeStep(target(kind), SlotCaches(target(kind).model), drafter)
    rows = [make_row(prompt, number) for number, prompt in enumerate(prompts)]
    for row in rows:
        step.admit(row)
    for counts in ([40, 18], [10, 30]):
        step.prefill(rows, counts)
    for row, fed in zip(rows, (39, 47), strict=True):
        keys, values = drafter.caches.contents(row.place, fed)
        states = target(kind).forward(mx.array([row.ids]), None)[0, :fed]
        assert mx.allclose(keys[0], states, rtol=1e-4, atol=1e-4)
        assert values[0, :, 0].tolist() == row.ids[1 : fed + 1]


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_slot_that_no_row_needs_is_given_up_before_buffers_grow(kind: str) -> None:
    step = DecodeStep(target(kind), SlotCaches(target(kind).model), None)
    long = tuple(i % 250 for i in range(245))
    rows = [as_ar(row_of(i)) for i in range(4)] + [as_ar(make_row(long, 4, ignore_eos=True))]
    for row in rows:
        start(step, row, chunk=999)
    step.cycle(rows)
    assert (step.caches.slots, step.caches.room) == (8, 256)
    for row in rows[:4]:
        step.release(row)
    single = as_ar(make_row(long, ignore_eos=True))
    run(DecodeStep(target(kind), StockCaches(target(kind).model), None), [single], chunk=999)
    while rows[4].room:
        step.cycle([rows[4]])
    assert (step.caches.slots, step.caches.room) == (1, 512)
    assert rows[4].output == single.output


def test_nothing_is_launched_ahead_for_rows_that_do_not_go_on() -> None:
    launched: list[int] = []

    class Counting(Target):
        def forward(self, tokens: Any, cache: Any) -> Any:
            launched.append(len(tokens))
            return super().forward(tokens, cache)

    model = target("llama").model
    step = DecodeStep(Counting(model), SlotCaches(model), None)
    rows = [start(step, as_ar(row_of(i))) for i in range(2)]
    for again, forwards in ((True, [2, 2]), (True, [2]), (False, []), (False, [2]), (True, [2, 2])):
        launched.clear()
        step.cycle(rows, again=again)
        assert launched == forwards
    launched.clear()
    step.cycle(rows[:1])
    assert launched == [1, 1]  # not those that were launched for both


def test_moves_that_leave_the_caches_behind_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken variant: rows change slots, their keys and values do not."""

    def stay(self: SlotCaches, moves: Sequence[Move]) -> None:
        """Nothing moves."""

    monkeypatch.setattr(SlotCaches, "move", stay)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), None)
    with pytest.raises(AssertionError):
        check(serve(step, "llama", seed=1), "llama")


def test_a_head_that_stays_behind_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken variant: the ids are right, but not the drafts."""
    drafter, right = head_drafter("llama")
    monkeypatch.setattr(drafter, "move", lambda moves: None)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
    check(serve(step, "llama", seed=1, most=7, cancel=False), "llama")
    assert any(count != accepted for count, accepted in right)


def test_padding_in_a_recurrent_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken variant: the layers are not told how many tokens of a row are real."""
    begin = RecurrentCache.begin

    def unaware(self: RecurrentCache, span: Span) -> None:
        begin(self, span)
        self.lengths = None

    monkeypatch.setattr(RecurrentCache, "begin", unaware)
    step = DecodeStep(target("qwen3_next"), SlotCaches(target("qwen3_next").model), None)
    with pytest.raises(AssertionError):
        check(serve(step, "qwen3_next", seed=1), "qwen3_next")
