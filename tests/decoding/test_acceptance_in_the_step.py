"""The rules in the real step, with a real model: drafts drawn on the device, drafts from text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.acceptance import BLOCK, REJECTION, draft_noise
from mtplx_kernel.decoding.drafting import Computed, Drafts
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.rows import as_ar, make_row, run
from tests.decoding.test_sampling import UNLIKELY, p_value, processed
from tests.decoding.toy import GuessDrafter
from tests.tiny import build

PROMPT, SLOTS, TOKENS = (5, 6), 16, 3
OPTIONS: dict[str, Any] = {"temperature": 1.6, "top_k": 3}
RULES = (REJECTION, BLOCK)
BROUGHT_IN = 99


class DrawnDrafter(GuessDrafter):
    """Draws every draft from the same few ids, on the device; remembers how many were kept."""

    name = "drawn"

    def __init__(self, ids: Sequence[int], shares: Any, claimed: Any = None) -> None:
        super().__init__(lambda text, depth: [])
        self._columns = mx.array(list(ids))
        self._logprobs = mx.log(mx.array(shares))
        self._claimed = self._logprobs if claimed is None else mx.log(mx.array(claimed))

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        def compute() -> Computed:
            size = self._columns.shape[0]
            gumbel = [
                mx.stack([draft_noise(row.seed, len(row.ids), i, size) for i in range(widest)])
                for row in rows
            ]
            drawn = mx.argmax(self._logprobs + mx.stack(gumbel), axis=-1)
            tokens = self._columns[drawn].astype(mx.int32)
            logprobs = [mx.stack([self._claimed] * k) if k else None for k in depths]
            return Computed(tokens, logprobs, self._columns)

        widest = max(depths)
        if not widest:
            return Drafts.none(len(rows))
        return Drafts(list(depths), [None if k else [] for k in depths], compute)


def law_of(model: Any, **more: Any) -> dict[tuple[int, int], float]:
    """The law of the first two tokens."""
    params = SamplingParams(**OPTIONS, **more)

    def after(*ids: int) -> Any:
        return processed(np.array(model(mx.array([ids])))[0, -1], (), params)

    first = after(*PROMPT)
    return {
        (int(a), int(b)): float(first[a] * second[b])
        for a in np.flatnonzero(first)
        for second in [after(*PROMPT, int(a))]
        for b in np.flatnonzero(second)
    }


def fit(
    model: Any,
    drafter: GuessDrafter,
    law: dict[tuple[int, int], float],
    rule: str,
    batches: int = 20,
    **more: Any,
) -> float:
    """How well the first two tokens of many seeds fit their law."""
    step = DecodeStep(Target(model), SlotCaches(model, SLOTS), drafter)
    counts = dict.fromkeys(law, 0)
    for batch in range(batches):
        rows = [
            make_row(
                PROMPT,
                number=i,
                seed=batch * SLOTS + i,
                max_tokens=TOKENS,
                depth=2,
                ignore_eos=True,
                acceptance=rule,
                **OPTIONS,
                **more,
            )
            for i in range(SLOTS)
        ]
        run(step, rows)
        for row in rows:
            assert row.draft_error is None
            counts[row.output[0], row.output[1]] += 1
    drafted, accepted = (sum(column) for column in zip(*drafter.observed, strict=True))
    assert 0.1 < accepted / drafted < 0.9
    return p_value(np.array(list(counts.values())), np.array(list(law.values())))


def known(law: dict[tuple[int, int], float]) -> tuple[list[int], Any]:
    """All but one of the second tokens, unevenly likely."""
    ids = sorted({b for pair in law for b in pair})[:-1]
    shares = np.arange(1, len(ids) + 1, dtype=np.float32)
    return ids, shares / shares.sum()


@pytest.mark.parametrize("rule", RULES)
def test_drafts_drawn_on_the_device_keep_the_models_law(rule: str) -> None:
    model = build("llama", sharp=2.0)
    law = law_of(model)
    assert fit(model, DrawnDrafter(*known(law)), law, rule) > UNLIKELY


@pytest.mark.parametrize("rule", RULES)
def test_a_drafter_that_hands_over_another_q_is_caught(rule: str) -> None:
    model = build("llama", sharp=2.0)
    law = law_of(model)
    ids, shares = known(law)
    assert fit(model, DrawnDrafter(ids, shares, shares[::-1].copy()), law, rule) < UNLIKELY


@pytest.mark.parametrize("rule", [*RULES, "coupled"])
def test_a_bias_is_part_of_the_law_that_drafts_are_held_against(rule: str) -> None:
    """The likeliest token loses much, and one that top-k rules out comes in."""
    model = build("llama", sharp=2.0)
    plain = law_of(model)
    likely = max(plain, key=lambda pair: plain[pair])
    bias = {likely[0]: -2.0, BROUGHT_IN: 4.0}
    law = law_of(model, logit_bias=bias)
    far = sum(abs(law.get(pair, 0) - plain.get(pair, 0)) for pair in law | plain) / 2
    assert far > 0.5  # so the plain law would be seen
    assert any(BROUGHT_IN in pair for pair in law)
    drafter = DrawnDrafter(*known(law))
    assert fit(model, drafter, law, rule, batches=10, logit_bias=bias) > UNLIKELY


@pytest.mark.parametrize("rule", RULES)
def test_drafts_from_text_keep_the_models_law(rule: str) -> None:
    model = build("llama", sharp=2.0)
    law = law_of(model)
    likely = max(law, key=lambda pair: law[pair])
    drafter = GuessDrafter(lambda ids, depth: [*likely, *likely][len(ids) - 2 :][:depth])
    assert fit(model, drafter, law, rule) > UNLIKELY


@pytest.mark.parametrize("rule", RULES)
def test_a_row_without_drafts_draws_what_coupled_sampling_does(rule: str) -> None:
    """Mode ar gives one text, whatever the rule."""
    model = build("llama")
    texts = []
    for acceptance in ("coupled", rule):
        row = as_ar(make_row(PROMPT, max_tokens=12, acceptance=acceptance, temperature=1.2))
        run(DecodeStep(Target(model), SlotCaches(model, 1), None), [row])
        texts.append(row.output)
    assert texts[0] == texts[1]


def test_rules_of_one_batch_do_not_mix() -> None:
    """Greedy, coupled and judged rows side by side give what each gives alone."""
    model = build("llama", sharp=2.0)
    law = law_of(model)
    ids = sorted({b for pair in law for b in pair})
    shares = [1 / len(ids)] * len(ids)
    jobs: list[dict[str, Any]] = [
        {"acceptance": BLOCK, "presence_penalty": 0.5, **OPTIONS},
        {"acceptance": "coupled", **OPTIONS},
        {"acceptance": BLOCK},
        {"acceptance": REJECTION, **OPTIONS},
        {"acceptance": REJECTION, "mode": "ar", **OPTIONS},
    ]

    def texts(slots: Sequence[int]) -> list[list[int]]:
        step = DecodeStep(Target(model), SlotCaches(model, len(jobs)), DrawnDrafter(ids, shares))
        rows = [make_row(PROMPT, i, seed=40 + i, max_tokens=15, depth=2, **jobs[i]) for i in slots]
        run(step, rows)
        return [row.output for row in rows]

    together = texts(range(len(jobs)))
    assert together == [texts([i])[0] for i in range(len(jobs))]
    assert len({tuple(text) for text in together}) == len(jobs)
