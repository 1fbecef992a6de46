"""What goes wrong in one forward or one row ends that, and the other rows keep their ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.slots import SlotCaches, StockCaches, UnsupportedCache
from mtplx_kernel.decoding.batching import why_not_batched
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.drafters import GUESSES, ForcedDrafter
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar, make_row, run, start
from tests.tiny import CONFIGS, VOCABULARY, build

PROMPTS = ((5, 6, 7, 8, 9, 40, 41), (90, 12), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3), (60, 61, 62))
LENGTH = 16


def row_of(number: int, **options: Any) -> Row:
    settings = {"max_tokens": LENGTH, "ignore_eos": True, "depth": 2, **options}
    return make_row(PROMPTS[number], number, **settings)


@cache
def alone(kind: str, number: int) -> list[int]:
    row = as_ar(row_of(number))
    run(DecodeStep(Target(build(kind)), StockCaches(build(kind)), None), [row])
    return row.ids


def unable() -> mx.array:
    """An array that can be built and not evaluated, as one for which a device has no memory."""
    half = mx.zeros((1, 4, 4), mx.float16)
    index = mx.zeros((1,), mx.uint32)
    return mx.gather_mm(half, half, rhs_indices=index).sum().astype(mx.float32)


class Fault:
    """Breaks the model's third layer when it is told to."""

    def __init__(self, model: Any, kind: str) -> None:
        self.on = False
        layer = model.layers[2]
        own = type(layer)
        fault = self

        def call(layer: Any, x: mx.array, *args: Any, **options: Any) -> Any:
            if fault.on and kind == "building":
                raise ZeroDivisionError("no luck")
            # Before the layer stores its keys: they will depend on what cannot be computed.
            return own.__call__(layer, x + unable() if fault.on else x, *args, **options)

        layer.__class__ = type(own.__name__, (own,), {"__call__": call})


def true_head() -> HeadDrafter:
    head = TrueHead([alone("llama", i) for i in range(len(PROMPTS))])
    return HeadDrafter(head, SlotCaches(head), VOCABULARY)


def forced() -> ForcedDrafter:
    truth = {f"row-{i}": alone("llama", i)[len(PROMPTS[i]) :] for i in range(len(PROMPTS))}
    return ForcedDrafter(truth, GUESSES["wrong_at_1"])


DRAFTERS: dict[str, Callable[[], Any]] = {"none": lambda: None, "forced": forced, "head": true_head}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("when", ["prefill", "cycle"])
@pytest.mark.parametrize("kind", ["building", "evaluating"])
def test_rows_that_were_not_in_a_failed_forward_go_on(kind: str, when: str, drafter: str) -> None:
    model = build("llama")
    fault = Fault(model, kind)
    step = DecodeStep(Target(model), SlotCaches(model), DRAFTERS[drafter]())
    first, second, third, fourth = (row_of(i) for i in range(4))
    for row in (first, second, third):
        start(step, row)
    for _ in range(2):
        step.cycle([first, second, third])
    step.admit(fourth)
    fault.on = True
    forward = {
        "prefill": lambda: step.prefill([fourth], [2]),
        "cycle": lambda: step.cycle([second, fourth]),
    }[when]
    with pytest.raises((ZeroDivisionError, RuntimeError)):
        forward()
    fault.on = False
    whole = step.recover()
    assert whole == (kind == "building")
    others = [first, third] if when == "cycle" else [first, second, third]
    failed = [fourth] if when == "prefill" else [second, fourth]
    for row in failed:
        step.release(row, wipe=True)
    if not whole:
        assert step.caches.nbytes == 0
        for row in others:
            row.rewind()
            assert row.prefill_left == len(row.ids) - 1 > len(PROMPTS[int(row.request_id[4:])]) - 1
    late = row_of(3)
    step.admit(late)
    joined = [*others, late]
    while any(row.prefill_left for row in joined):
        step.prefill(joined, [min(3, row.prefill_left) for row in joined])
    while any(row.room for row in joined):
        step.cycle([row for row in joined if row.room])
    for row in joined:
        assert row.ids == alone("llama", int(row.request_id[4:]))
        assert row.draft_error is None


def test_a_head_that_is_lost_costs_all_its_rows_their_drafts_only() -> None:
    """Its caches cannot be evaluated any more; rows that come later are drafted for."""
    drafter = true_head()
    step = DecodeStep(Target(build("llama")), SlotCaches(build("llama")), drafter)
    rows = [start(step, row_of(i)) for i in range(3)]
    step.cycle(rows)
    layer = drafter.caches.layers[0]
    layer.keys = layer.keys + unable()
    step.cycle(rows[:2])
    assert all((row.draft_error or "").startswith("head: RuntimeError") for row in rows)
    assert drafter.caches.nbytes == 0
    late = start(step, row_of(3))
    drafted = 0
    while any(row.room for row in (*rows, late)):
        outcomes = step.cycle([row for row in (*rows, late) if row.room])
        drafted += sum(o.drafted for o in outcomes if o.row is late)
        assert [o.drafted for o in outcomes if o.row is not late].count(0) == len(
            [o for o in outcomes if o.row is not late]
        )
    assert drafted > 0
    for row in (*rows, late):
        assert row.ids == alone("llama", int(row.request_id[4:]))


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_row_whose_logits_are_not_finite_ends_alone(kind: str) -> None:
    model = build(kind)
    table = mx.array(model.model.embed_tokens.weight)
    table[99] = float("nan")
    model.model.embed_tokens.weight = table
    step = DecodeStep(Target(model), SlotCaches(model), None)
    rows = [row_of(0), make_row((5, 99, 7), 1, max_tokens=9), row_of(2)]
    for row in rows:
        start(step, row)
    outcomes = step.cycle(rows)
    assert [o.error is None for o in outcomes] == [True, False, True]
    step.release(rows[1], wipe=True)
    rows[1] = start(step, row_of(3))
    while any(row.room for row in rows):
        assert {o.error for o in step.cycle([row for row in rows if row.room])} == {None}
    for row in rows:
        assert row.ids == alone(kind, int(row.request_id[4:]))


def test_text_that_cannot_be_decoded_ends_its_row_alone() -> None:
    class Fails:
        def decode(self, ids: list[int]) -> str:
            if len(ids) > 8:
                raise UnicodeError("no such text")
            return ""

    model = build("llama")
    step = DecodeStep(Target(model), SlotCaches(model), None)
    rows = [row_of(i) for i in range(2)]
    rows[0].text._tokenizer = Fails()
    for row in rows:
        start(step, row)
    while (outcome := step.cycle(rows)[0]).error is None:
        pass
    assert outcome.error == "the text cannot be decoded: UnicodeError: no such text"
    assert outcome.ended is None
    step.release(rows[0])
    while rows[1].room:
        step.cycle([rows[1]])
    assert rows[1].ids == alone("llama", 1)


@pytest.mark.parametrize("guess", ["right", "wrong_at_1", "random", "end_inside"])
@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_row_may_leave_the_bonus_to_the_next_cycle(kind: str, guess: str) -> None:
    model = build(kind)
    truth = {f"row-{i}": alone(kind, i)[len(PROMPTS[i]) :] for i in range(3)}
    step = DecodeStep(Target(model), SlotCaches(model), ForcedDrafter(truth, GUESSES[guess]))
    rows = [row_of(i, depth=3) for i in range(3)]
    for row in rows[1:]:
        row.omit_bonus = True
    for row in rows:
        start(step, row)
    while live := [row for row in rows if row.room]:
        for outcome in step.cycle(live):
            row, full = outcome.row, outcome.accepted == outcome.drafted > 0
            assert row.pending[-1] == row.ids[-1]
            bonus = not (row.omit_bonus and full)
            assert len(outcome.tokens) == outcome.accepted + bonus
    for row in rows:
        assert row.ids == alone(kind, int(row.request_id[4:]))


@pytest.mark.parametrize("kind", CONFIGS)
def test_whether_a_model_may_batch(kind: str) -> None:
    """nemotron_h of the pinned mlx-lm updates its state with the padding of shorter rows."""
    reason = why_not_batched(Target(build(kind)))
    if kind == "nemotron_h":
        assert reason == "rows of different lengths do not give what each of them gives alone"
    else:
        assert reason is None


def test_a_model_that_takes_one_row_only_may_not_batch() -> None:
    class OneRow(Target):
        def forward(self, tokens: mx.array, cache: list[Any] | None) -> mx.array:
            if len(tokens) > 1:
                raise ValueError("one row only")
            return super().forward(tokens, cache)

    reason = why_not_batched(OneRow(build("llama")))
    assert reason == "its layers do not take several rows (ValueError: one row only)"


def test_mlx_lms_own_caches_refuse_a_second_row() -> None:
    step = DecodeStep(Target(build("llama")), StockCaches(build("llama")), None)
    start(step, row_of(0))
    second = row_of(1)
    with pytest.raises(UnsupportedCache):
        step.admit(second)
    assert second.slot is None
    step.release(second)
