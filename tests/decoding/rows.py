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


def make_row(prompt: Sequence[int], slot: int = 0, **options: Any) -> Row:
    params = SamplingParams(**{"max_tokens": 24, "mode": "mtp", "seed": 5, **options})
    assert params.mode is not None
    assert params.seed is not None
    end_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        end_ids |= {END_ID}
    return Row(
        request_id=f"row-{slot}",
        ids=list(prompt),
        params=params,
        seed=params.seed,
        mode=params.mode,
        end_ids=end_ids,
        context_length=512,
        text=TextStream(Letters(), prompt, params.stop),
        slot=slot,
    )


def as_ar(row: Row) -> Row:
    row.mode, row.drafting = GenerationMode.AR, False
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
        while row.prefill_left:
            step.prefill(row, min(chunk, row.prefill_left))
    ends: dict[str, str] = {}
    live = list(rows)
    while live:
        for part in neighbours(live):
            for outcome in step.cycle(part):
                assert outcome.error is None
                if outcome.ended is not None:
                    ends[outcome.row.request_id] = outcome.ended
        live = [row for row in live if row.request_id not in ends]
        after_cycle(live)
    return [ends[row.request_id] for row in rows]


def neighbours(rows: list[Row]) -> list[list[Row]]:
    """Split rows, in slot order, into runs of neighbouring slots."""
    parts: list[list[Row]] = []
    for row in rows:
        if parts and parts[-1][-1].slot + 1 == row.slot:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
