"""A forward that was launched ahead and then dropped leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.rows import as_ar, make_row, run, start
from tests.tiny import build

PROMPT = (5, 6, 7, 8)
OTHER = (60, 61, 62)
KINDS = ("llama", "sliding", "qwen3_next", "nemotron_h")


@cache
def target(kind: str) -> Target:
    return Target(build(kind))


def row_of(prompt: tuple[int, ...], number: int = 0, count: int = 10) -> Row:
    return as_ar(make_row(prompt, number=number, max_tokens=count, ignore_eos=True))


@cache
def alone(kind: str, prompt: tuple[int, ...]) -> list[int]:
    row = row_of(prompt)
    run(DecodeStep(target(kind), SlotCaches(target(kind).model), None), [row])
    return row.output


def started(step: DecodeStep, row: Row, cycles: int) -> Row:
    if row.slot is None:
        start(step, row, chunk=999)
    for _ in range(cycles):
        step.cycle([row])
    return row


CACHES: dict[str, Callable[[Any], Any]] = {"slots": SlotCaches, "stock": StockCaches}


@pytest.mark.parametrize("caches", CACHES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_row_after_a_cancelled_one(kind: str, caches: str) -> None:
    step = DecodeStep(target(kind), CACHES[caches](target(kind).model), None)
    step.release(started(step, row_of(PROMPT), cycles=3))
    assert started(step, row_of(OTHER), cycles=10).output == alone(kind, OTHER)


@pytest.mark.parametrize("caches", CACHES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_goes_on_when_a_waiting_one_is_released(kind: str, caches: str) -> None:
    """Caches that cannot go back have already taken the token that was fed ahead."""
    step = DecodeStep(target(kind), CACHES[caches](target(kind).model), None)
    row = started(step, row_of(PROMPT), cycles=3)
    step.release(row_of(OTHER))
    started(step, row, cycles=7)
    assert row.output == alone(kind, PROMPT)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "nemotron_h"])
def test_rows_come_and_go_between_cycles(kind: str) -> None:
    step = DecodeStep(target(kind), SlotCaches(target(kind).model, slots=2), None)
    first = started(step, row_of(PROMPT, number=0), cycles=2)
    second = started(step, row_of(OTHER, number=1), cycles=1)
    for rows in ([first, second], [first], [second], [second], [first, second], [first, second]):
        step.cycle(rows)
    assert first.output == alone(kind, PROMPT)[:6]
    assert second.output == alone(kind, OTHER)[:6]
