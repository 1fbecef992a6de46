"""Log-probabilities that a row reports: against NumPy, in every mode, and only where asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.decoding.logprob import TokenLogprob
from mtplx_kernel.decoding.reporting import Report, likeliest
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from tests.decoding.drafters import GUESSES, ForcedDrafter
from tests.decoding.rows import Letters, as_ar, make_row, run, start
from tests.decoding.test_acceptance_in_the_step import DrawnDrafter
from tests.decoding.twins import SecondHead, forking_step, target
from tests.tiny import VOCABULARY

PROMPT = (5, 6, 7, 8, 9, 40, 41)
PROMPTS = (PROMPT, (90, 12), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9), (60, 61, 62))
BIAS = {i: ((i * 37) % 17 - 8) / 2 for i in range(0, 250, 3)}
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.2,
    "penalty_context": 6,
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 2},
    "biased": {"temperature": 1.2, "logit_bias": BIAS},
    "penalties": {"temperature": 0.7, "logit_bias": BIAS, **PENALTIES},
}
KINDS = ("llama", "qwen3_next")
TOP = 5


def asked(sampler: str, number: int = 0, **options: Any) -> Row:
    settings = {"max_tokens": 16, "ignore_eos": True, "logprobs": TOP, **SAMPLERS[sampler]}
    return make_row(PROMPTS[number], number, **(settings | options))


@cache
def truth(kind: str, sampler: str, number: int = 0) -> Row:
    """A row in mode ar by itself, on mlx-lm's own caches."""
    row = as_ar(asked(sampler, number))
    run(DecodeStep(target(kind), StockCaches(target(kind).model), None), [row], chunk=100)
    return row


def log_softmax(x: Any) -> Any:
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def written_out(row: Row) -> list[Any]:
    """The log-probabilities of all ids at each place of an output, in float64, from one forward."""
    p, ids = row.params, row.ids
    logits = np.array(target("llama").model(mx.array([ids]))[0]).astype(np.float64)
    found = []
    for end in range(row.prompt_length, len(ids)):
        x, recent = logits[end - 1], ids[max(0, end - p.penalty_context) : end]
        for token, bias in (p.logit_bias or {}).items():
            x[token] += bias
        for token in set(recent):
            x[token] *= p.repetition_penalty if x[token] < 0 else 1 / p.repetition_penalty
            x[token] -= p.presence_penalty + p.frequency_penalty * recent.count(token)
        found.append(log_softmax(x))
    return found


@pytest.mark.parametrize("mode", ["ar", "mtp"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_they_are_the_softmax_after_bias_and_penalties(sampler: str, mode: str) -> None:
    row = truth("llama", sampler)
    if mode == "mtp":
        drafter = ForcedDrafter({"row-0": row.output}, GUESSES["wrong_at_1"])
        row = asked(sampler, depth=3)
        run(DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter), [row])
    told, expected = row.logprobs, written_out(row)
    assert len(told) == len(row.output) == 16
    for token, own, logprobs in zip(row.output, told, expected, strict=True):
        assert own.token_id == token
        assert own.logprob == pytest.approx(logprobs[token], abs=1e-4)
        ids = [i for i, _ in own.top]
        assert ids == np.argsort(-logprobs, kind="stable")[:TOP].tolist()
        assert [v for _, v in own.top] == pytest.approx(logprobs[ids].tolist(), abs=1e-4)
        if sampler == "greedy":
            assert own.top[0] == (token, own.logprob)


@pytest.mark.parametrize("size", [3, 12, 300])
@pytest.mark.parametrize("top", [1, 2, 7, 20])
def test_the_likeliest_come_in_order_and_of_equal_ones_the_lower_id_first(
    top: int, size: int
) -> None:
    source = np.random.default_rng(top * size)
    logits = np.round(source.normal(size=(4, size)) * 2).astype(np.float32)  # many are equal
    logits[1, : size // 2] = -np.inf
    logprobs = mx.array(logits) - mx.logsumexp(mx.array(logits), axis=-1, keepdims=True)
    found: Any = likeliest(logprobs, top).tolist()
    expected = [sorted(range(size), key=lambda i: (-row[i], i))[:top] for row in logits]
    assert found == expected
    assert [row[0] for row in found] == mx.argmax(logprobs, axis=-1).tolist()


def test_of_all_ids_the_chances_sum_to_one_and_those_ruled_out_are_left_out() -> None:
    logits = mx.array([[1.0, -math.inf, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    first, second = Report.of(logits, mx.array([3, 1], dtype=mx.int32), 20).read([3, 1])
    assert [i for i, _ in first.top] == [2, 3, 0]
    assert [i for i, _ in second.top] == [0, 1, 2, 3]
    assert first.logprob == dict(first.top)[3]
    assert {round(v, 6) for _, v in second.top} == {round(-math.log(4), 6)}
    for told in (first, second):
        assert sum(math.exp(v) for _, v in told.top) == pytest.approx(1, abs=1e-6)
    (alone,) = Report.of(logits[:1], mx.array([2], dtype=mx.int32), 0).read([2])
    total = math.exp(1) + math.exp(3) + math.exp(2)
    assert alone == TokenLogprob(2, pytest.approx(3 - math.log(total), abs=1e-6), ())


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("guess", ["right", "wrong", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_mtp_tells_what_ar_tells(kind: str, guess: str, sampler: str) -> None:
    known = truth(kind, sampler)
    drafter = ForcedDrafter({"row-0": known.output}, GUESSES[guess])
    row = asked(sampler, depth=3)
    run(DecodeStep(target(kind), SlotCaches(target(kind).model), drafter), [row])
    assert row.output == known.output
    assert row.logprobs == known.logprobs


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_heads_and_forks_tell_what_ar_tells(sampler: str, width: int) -> None:
    known = truth("llama", sampler)
    step = forking_step("llama", SecondHead([known.ids], 4))
    row = asked(sampler, depth=2)
    with step.forking([width]) as figures:
        run(step, [row])
    assert (figures.fork_attempts > 0) is (width > 1)
    # A bias that the head did not know of makes its second best another one.
    assert (figures.fork_wins > 0) is (width > 1 and sampler != "biased")
    assert (row.output, row.logprobs) == (known.output, known.logprobs)


def test_a_bonus_that_is_left_out_is_told_once() -> None:
    known = truth("llama", "sampled")
    drafter = ForcedDrafter({"row-0": known.output}, GUESSES["right"])
    row = asked("sampled", depth=2)
    row.omit_bonus = True
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter), [row])
    assert (row.output, row.logprobs) == (known.output, known.logprobs)


@pytest.mark.parametrize("look_ahead", [True, False])
@pytest.mark.parametrize("guess", ["random", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_batch_tell_their_own(kind: str, guess: str, look_ahead: bool) -> None:
    """Rows that report different numbers of ids beside one that reports none."""
    known = [truth(kind, sampler, i) for i, sampler in enumerate(SAMPLERS)]
    rows = [
        asked(sampler, i, depth=1 + i, logprobs=(TOP, 0, None, 2)[i])
        for i, sampler in enumerate(SAMPLERS)
    ]
    outputs = {row.request_id: row.output for row in known}
    drafter = ForcedDrafter(outputs, GUESSES[guess]) if guess in GUESSES else None
    caches = SlotCaches(target(kind).model, 4)
    run(DecodeStep(target(kind), caches, drafter, look_ahead=look_ahead), rows)
    for row, alone in zip(rows, known, strict=True):
        assert row.output == alone.output
        top = row.params.logprobs
        shorter = [TokenLogprob(t.token_id, t.logprob, t.top[:top]) for t in alone.logprobs]
        assert row.logprobs == ([] if top is None else shorter)


@pytest.mark.parametrize("sampler", ["sampled", "penalties"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_drafts_that_are_judged_by_chance(rule: str, sampler: str) -> None:
    """What is drawn stays the same, and the numbers are those of the tokens that came.

    Two rows side by side: each has its own positions among those of the forward.
    """
    ids = sorted({i for row in (truth("llama", s) for s in SAMPLERS) for i in row.output})

    def decoded(logprobs: int | None) -> tuple[list[Row], list[tuple[int, int]]]:
        drafter = DrawnDrafter(ids, [1 / len(ids)] * len(ids))
        options = {"acceptance": rule, "depth": 2, "max_tokens": 40, "logprobs": logprobs}
        rows = [asked(sampler, number, **options) for number in (0, 1)]
        run(DecodeStep(target("llama"), SlotCaches(target("llama").model, 2), drafter), rows)
        return rows, drafter.observed

    rows, observed = decoded(3)
    assert 0 < sum(kept for _, kept in observed) < sum(drafted for drafted, _ in observed)
    assert [row.output for row in rows] == [row.output for row in decoded(None)[0]]
    for row in rows:
        for token, own, logprobs in zip(row.output, row.logprobs, written_out(row), strict=True):
            assert own.token_id == token
            assert own.logprob == pytest.approx(logprobs[token], abs=1e-4)
            assert [i for i, _ in own.top] == np.argsort(-logprobs, kind="stable")[:3].tolist()


class Counted:
    """Counts calls of what costs something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports = self.waits = self.launched = 0
        of, wait, launch = Report.of, mx.eval, mx.async_eval

        def reporting(*args: Any) -> Report:
            self.reports += 1
            return of(*args)

        def waiting(*args: Any) -> None:
            self.waits += 1
            wait(*args)

        def launching(*args: Any) -> None:
            self.launched += len(args[0])
            launch(*args)

        monkeypatch.setattr(Report, "of", reporting)
        monkeypatch.setattr(mx, "eval", waiting)
        monkeypatch.setattr(mx, "async_eval", launching)


@pytest.mark.parametrize("guess", ["wrong_at_1", "none"])
def test_nothing_is_computed_where_it_is_off(monkeypatch: pytest.MonkeyPatch, guess: str) -> None:
    known = truth("llama", "sampled")

    def counted(tops: Sequence[int | None]) -> Counted:
        rows = [asked("sampled", logprobs=top) for top in tops]
        for number, row in enumerate(rows):
            row.request_id = f"row-{number}"
        outputs = {row.request_id: known.output for row in rows}
        drafter = ForcedDrafter(outputs, GUESSES[guess]) if guess in GUESSES else None
        caches = SlotCaches(target("llama").model, len(rows))
        step = DecodeStep(target("llama"), caches, drafter, look_ahead=False)
        for row in rows:
            start(step, row)
        with monkeypatch.context() as patch:
            count = Counted(patch)
            for _ in range(4):
                step.cycle(rows)
        return count

    off, mixed, on = counted([None] * 3), counted([None, TOP, None]), counted([0, TOP, 20])
    assert (off.reports, off.waits, off.launched) == (0, 0, 4)
    # One array more for the ids and one for their numbers, all waited for at once.
    assert (mixed.reports, mixed.waits, mixed.launched) == (4, 4, 4 * 3)
    assert (on.reports, on.waits, on.launched) == (12, 4, 4 * 7)


def test_every_id_of_a_row_that_fails_has_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that stop to be finite, and a text that cannot be decoded."""
    known = truth("llama", "greedy")
    logits = target("llama").logits

    def failing(hidden: mx.array) -> mx.array:
        return mx.full((hidden.shape[0], VOCABULARY), mx.nan)

    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), None, look_ahead=False)
    row = start(step, as_ar(asked("greedy")))
    step.cycle([row])
    monkeypatch.setattr(target("llama"), "logits", failing)
    (outcome,) = step.cycle([row])
    assert outcome.error is not None
    assert row.logprobs == known.logprobs[:1]
    monkeypatch.setattr(target("llama"), "logits", logits)

    class Illegible(Letters):
        def decode(self, ids: list[int]) -> str:
            raise UnicodeError("no letter")

    step.release(row)
    row = as_ar(asked("greedy"))
    row.text._tokenizer = Illegible()
    (outcome,) = step.cycle([start(step, row)])
    assert outcome.error is not None
    assert (row.output, row.logprobs) == (known.output[:1], known.logprobs[:1])
