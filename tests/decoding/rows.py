"""Running rows through the decode step without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.decoding.text import TextStream
from tests.tiny import END_ID


class Letters:
    """Decodes each id to one character."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(0x4E00 + i) for i in ids)


def make_row(prompt: Sequence[int], number: int = 0, **options: Any) -> Row:
    params = SamplingParams(**{"max_tokens": 24, "mode": "mtp", "seed": 5, **options})
    assert params.mode is not None
    assert params.seed is not None
    end_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        end_ids |= {END_ID}
    return Row(
        request_id=f"row-{number}",
        ids=list(prompt),
        params=params,
        seed=params.seed,
        mode=params.mode,
        end_ids=end_ids,
        context_length=512,
        text=TextStream(Letters(), prompt, params.stop),
    )


def as_ar(row: Row) -> Row:
    row.mode, row.drafting = GenerationMode.AR, False
    return row


def start(step: DecodeStep, row: Row, chunk: int = 4) -> Row:
    """Admit a row and feed its prompt."""
    step.admit(row)
    while row.prefill_left:
        step.prefill([row], [min(chunk, row.prefill_left)])
    return row


def run(
    step: DecodeStep,
    rows: list[Row],
    chunk: int = 4,
    after_cycle: Callable[[list[Row]], None] = lambda rows: None,
) -> list[str]:
    """Prefill each row, then decode until all have ended; rows that end stay as passengers.

    Returns how each row ended.
    """
    for row in rows:
        start(step, row, chunk)
    ends: dict[str, str] = {}
    live = list(rows)
    while live:
        for outcome in step.cycle(live):
            assert outcome.error is None
            if outcome.ended is not None:
                ends[outcome.row.request_id] = outcome.ended
        live = [row for row in live if row.request_id not in ends]
        after_cycle(live)
    return [ends[row.request_id] for row in rows]
