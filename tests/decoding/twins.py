"""What the tests of forks share: requests, their truths, a head whose second best is right."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.forking import ForkingStep
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar, make_row, run
from tests.tiny import VOCABULARY, build

PROMPT = (5, 6, 7, 8, 9, 40, 41)
KINDS = ("llama", "sliding", "qwen3_next", "deepseek_v3")
TWO_WAYS = ("llama", "qwen3_next")
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 2},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "penalty_context": 6},
    "greedy_penalties": {"repetition_penalty": 1.2, "penalty_context": 8},
}
LENGTH = 24


class SecondHead(TrueHead):
    """Where its best draft is wrong, its second best is right."""

    def logits(self, hidden: mx.array) -> mx.array:
        rows, positions = hidden[..., 0], hidden[..., 1] + 2
        truth = self._truths[rows, positions][..., None] == mx.arange(VOCABULARY)
        return mx.where(truth, mx.maximum(super().logits(hidden), 12.0), super().logits(hidden))


@cache
def target(kind: str) -> Target:
    return Target(build(kind))


def asked(sampler: str = "greedy", **options: Any) -> Row:
    settings = {"max_tokens": LENGTH, "ignore_eos": True, **SAMPLERS[sampler]}
    return make_row(PROMPT, **(settings | options))


@cache
def truth(kind: str, sampler: str = "greedy") -> list[int]:
    row = as_ar(asked(sampler))
    run(DecodeStep(target(kind), SlotCaches(target(kind).model), None), [row])
    return row.ids


def forking_step(kind: str, head: TrueHead | None, drafter: Any = None) -> ForkingStep:
    if head is not None:
        drafter = HeadDrafter(head, SlotCaches(head), VOCABULARY)
    return ForkingStep(target(kind), SlotCaches(target(kind).model), drafter)
