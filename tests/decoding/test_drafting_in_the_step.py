"""Drafters inside the decode step: what they gain, and that their failures cost speed only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mtplx_kernel.decoding.depth import CostCurve, Costs, CostSurface
from mtplx_kernel.decoding.lookup import NGRAM_SIZES, LookupDrafter
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from tests.decoding.rows import start
from tests.decoding.toy import Context, GuessDrafter, ToyStep, toy_row

PERIOD = 5
COUNT = 80


def next_in_turn(context: Context, position: int) -> int:
    return (context[-1] + 1) % PERIOD


def decode(step: DecodeStep, row: Row) -> None:
    while row.room > 0:
        step.cycle([row])


def counting_row(**options: Any) -> Row:
    prompt = tuple(range(PERIOD)) * 2
    return toy_row(prompt, context_length=999, depth=None, max_tokens=COUNT, **options)


TRUTH = [i % PERIOD for i in range(COUNT)]


def test_repeating_text_takes_few_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyStep(monkeypatch, next_in_turn, PERIOD)
    row = counting_row()
    step = toy.make(LookupDrafter())
    start(step, row, chunk=999)
    decode(step, row)
    assert row.output == TRUTH
    assert toy.target.forwards == 1 + -(-COUNT // (MAX_DEPTH + 1))


@pytest.mark.parametrize("look_ahead", [False, True])
def test_a_drafter_recovers_from_a_bad_start(
    monkeypatch: pytest.MonkeyPatch, look_ahead: bool
) -> None:
    """Guesses that failed in earlier requests are held against the text all the same."""
    toy = ToyStep(monkeypatch, next_in_turn, PERIOD)
    drafter = LookupDrafter(Costs(CostSurface(CostCurve((1, 2, 17), (1.0, 1.4, 7.4)))))
    for n in NGRAM_SIZES:
        for _ in range(100):
            drafter._rates[n].observe(1, 0)
    step = toy.make(drafter)
    step._look_ahead = look_ahead
    row = counting_row()
    start(step, row, chunk=999)
    accepted = 0
    while row.room > 0:
        accepted += step.cycle([row])[0].accepted
    assert row.output == TRUTH
    assert accepted > COUNT // 4


@pytest.mark.parametrize("call", ["propose", "observe", "release"])
def test_a_drafter_that_fails_costs_speed_only(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    toy = ToyStep(monkeypatch, next_in_turn, PERIOD)
    drafter = GuessDrafter(lambda ids, depth: [0] * min(depth, 1))

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(drafter, call, fail)
    step = toy.make(drafter)
    row = counting_row()
    start(step, row, chunk=999)
    decode(step, row)
    step.release(row)
    assert row.output == TRUTH
    assert row.draft_error == "guess: ZeroDivisionError: no luck"


def test_pending_tokens_of_a_recurrent_model_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts that are half right keep the state back; now and then a cycle without them commits."""
    toy = ToyStep(monkeypatch, next_in_turn, PERIOD)

    def half_right(ids: Sequence[int], depth: int) -> list[int]:
        right = [(ids[-1] + 1 + i) % PERIOD for i in range(depth)]
        return [*right[:2], (right[2] + 1) % PERIOD] if depth > 2 else right

    step = toy.make(GuessDrafter(half_right), recurrent=True)
    row = counting_row()
    start(step, row, chunk=999)
    longest = 0
    while row.room > 0:
        step.cycle([row])
        longest = max(longest, len(row.pending))
    assert row.output == TRUTH
    assert MAX_DEPTH < longest <= MAX_DEPTH + 3
