"""Answers held to a form: it is part of the law that drafts are held against, whatever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.decoding import flight
from mtplx_kernel.decoding.acceptance import Chances, chances
from mtplx_kernel.decoding.constraint import unpacked
from mtplx_kernel.decoding.draft_sampling import draw_drafts
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.sampling import Draw, adjusted, shaped
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding import test_acceptance_law as laws
from tests.decoding.drafters import GUESSES, ForcedDrafter
from tests.decoding.rows import as_ar, make_row, run
from tests.decoding.test_acceptance_in_the_step import PROMPT as SHORT
from tests.decoding.test_acceptance_in_the_step import DrawnDrafter
from tests.decoding.test_sampling import UNLIKELY, p_value, processed
from tests.decoding.toy import Context, GuessDrafter
from tests.decoding.twins import SecondHead, forking_step, target
from tests.tiny import VOCABULARY, build

PROMPT = (5, 6, 7, 8, 9, 40, 41)
LENGTH = 20
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 2},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "penalty_context": 6},
    "biased": {"logit_bias": dict.fromkeys(range(0, 250, 3), 3.0)},
}
KINDS = ("llama", "qwen3_next")


class Suiting:
    """Ids of which each must suit those before it; ends after some.

    Attributes
    ----------
    asked
        The drafts of each call.
    """

    def __init__(self, length: int = LENGTH, certain: Sequence[int] = ()) -> None:
        self.said: list[int] = []
        self.asked: list[list[int]] = []
        self._length = length
        self._certain = list(certain)

    error: str | None = None

    @property
    def complete(self) -> bool:
        return len(self.said) >= self._length

    def allowed(self, drafts: Sequence[int]) -> mx.array:
        self.asked.append(list(drafts))
        rows = []
        for i in range(len(drafts) + 1):
            before = self.said + list(drafts[:i])
            right = all(
                may_follow(before[:n], before[n]) for n in range(len(self.said), len(before))
            )
            rows.append([not right or may_follow(before, t) for t in range(VOCABULARY)])
        return mx.array(rows)

    def forced(self, most: int) -> list[int]:
        at = len(self.said)
        return self._certain[at : at + min(most, 2)]

    def advance(self, token: int) -> str | None:
        if not may_follow(self.said, token):
            return f"{token} may not follow"
        self.said.append(token)
        return None


def may_follow(before: Sequence[int], token: int) -> bool:
    """A third of the ids, by what came before."""
    return token < 256 and (token + sum(before)) % 3 == len(before) % 3


def held(prompt: tuple[int, ...] = PROMPT, number: int = 0, **options: Any) -> Row:
    row = make_row(prompt, number, **{"max_tokens": 99, **options})
    row.constraint = Suiting()
    return row


@cache
def truth(kind: str, sampler: str, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    """The output of mode ar, on mlx-lm's own caches."""
    row = as_ar(held(prompt, **SAMPLERS[sampler]))
    assert run(DecodeStep(target(kind), StockCaches(target(kind).model), None), [row]) == ["stop"]
    return row.output


def test_bits_are_ids_the_lowest_first() -> None:
    words = mx.array([[0b101, 1 << 31], [0, 0b10]], dtype=mx.uint32)
    found: Any = unpacked(words, 35).tolist()
    assert [[i for i, may in enumerate(row) if may] for row in found] == [[0, 2], [33]]
    assert len(found[0]) == 35
    assert unpacked(mx.array([[0xFFFFFFFF] * 2], dtype=mx.uint32), 64).all().item()


def test_it_comes_before_bias_and_penalties() -> None:
    params = SamplingParams(logit_bias={1: 100}, repetition_penalty=0.5)
    d = Draw(params, 0, 2, (1, 2), 1, mx.array([[True, False, True]]))
    assert adjusted(mx.array([[1.0, 3.0, 2.0]]), d).tolist() == [[1.0, -np.inf, 4.0]]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_mode_ar_keeps_to_it(sampler: str) -> None:
    known = truth("llama", sampler)
    assert len(known) == LENGTH
    assert all(may_follow(known[:i], token) for i, token in enumerate(known))
    free = as_ar(make_row(PROMPT, max_tokens=LENGTH, ignore_eos=True, **SAMPLERS[sampler]))
    run(DecodeStep(target("llama"), StockCaches(target("llama").model), None), [free])
    assert free.output != known


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("guess", ["right", "wrong", "wrong_at_1", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_mtp_equals_ar(kind: str, guess: str, sampler: str) -> None:
    known = truth(kind, sampler)
    drafter = ForcedDrafter({"row-0": known}, GUESSES[guess])
    row = held(depth=3, **SAMPLERS[sampler])
    ends = run(DecodeStep(target(kind), SlotCaches(target(kind).model), drafter), [row])
    assert (row.output, ends) == (known, ["stop"])
    if guess == "right":
        assert drafter.drafted > 0


@pytest.mark.parametrize("depth", [0, 1, 7, 16])
def test_every_depth_equals_ar(depth: int) -> None:
    known = truth("llama", "sampled")
    drafter = ForcedDrafter({"row-0": known}, GUESSES["wrong_at_2"])
    row = held(depth=depth, **SAMPLERS["sampled"])
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter), [row])
    assert row.output == known


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_batch_have_their_own(kind: str) -> None:
    """Rows that are held to something beside one that is free."""
    samplers = ["greedy", "sampled", "penalties"]
    prompts = [PROMPT, (90, 12), (3, 1, 4, 1, 5), (60, 61, 62)]
    free = as_ar(make_row(prompts[3], ignore_eos=True))
    run(DecodeStep(target(kind), StockCaches(target(kind).model), None), [free], chunk=100)
    known = [truth(kind, s, p) for s, p in zip(samplers, prompts, strict=False)] + [free.output]
    outputs = {f"row-{i}": ids for i, ids in enumerate(known)}
    drafter = ForcedDrafter(outputs, GUESSES["random"])
    rows = [
        held(p, i, depth=1 + i, **SAMPLERS[s])
        for i, (p, s) in enumerate(zip(prompts, samplers, strict=False))
    ]
    rows.append(make_row(prompts[3], 3, ignore_eos=True))
    run(DecodeStep(target(kind), SlotCaches(target(kind).model, 4), drafter), rows)
    assert [row.output for row in rows] == known


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("width", [1, 3])
def test_heads_and_forks_equal_ar(width: int, sampler: str) -> None:
    known = truth("llama", sampler)
    step = forking_step("llama", SecondHead([[*PROMPT, *known]], 4))
    row = held(depth=2, **SAMPLERS[sampler])
    with step.forking([width]) as figures:
        run(step, [row])
    assert row.output == known
    assert row.draft_error is None
    assert (figures.fork_attempts > 0) is (width > 1)


@pytest.mark.parametrize("wrong", [False, True])
def test_what_the_form_forces_is_drafted(wrong: bool) -> None:
    """Right or not, it changes nothing but the number of cycles; the drafter is not asked."""
    known = truth("llama", "greedy")
    certain = [(t + 3) % 256 for t in known] if wrong else known
    drafter = GuessDrafter(lambda ids, depth: [0] * depth)
    row = held(depth=2)
    row.constraint = Suiting(certain=certain)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
    cycles: list[int] = []
    run(step, [row], after_cycle=lambda rows: cycles.append(len(rows)))
    assert row.output == known
    assert len(cycles) == (LENGTH if wrong else -(-LENGTH // 3))
    assert {drafted for drafted, _ in drafter.observed} == {0}


def test_a_token_that_may_not_come_fails_the_row() -> None:
    """As where the model rules out all that may come."""
    row = held()
    row.constraint = Suiting()
    row.constraint.said.append(2)
    row.constraint.allowed = lambda drafts: mx.ones((1, VOCABULARY), dtype=mx.bool_)  # type: ignore[method-assign]
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), None)
    step.admit(row)
    step.prefill([row], [row.prefill_left])
    (outcome,) = step.cycle([row])
    assert outcome.error is not None
    assert outcome.error.endswith("may not follow")
    assert row.output == []


def test_a_form_that_breaks_while_it_is_asked_fails_the_row() -> None:
    """What it says then is not to be trusted: an end would pass for the end of a whole answer."""
    row = held(stop_token_ids=tuple(range(256)))
    assert isinstance(row.constraint, Suiting)
    row.constraint.error = "too costly"
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), None)
    step.admit(row)
    step.prefill([row], [row.prefill_left])
    (outcome,) = step.cycle([row])
    assert (outcome.error, outcome.ended, row.output) == ("too costly", None, [])


def test_max_tokens_cuts_it() -> None:
    row = held(max_tokens=5)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), None)
    assert run(step, [row]) == ["length"]
    assert row.output == truth("llama", "greedy")[:5]


def test_free_rows_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their forwards are launched ahead, and no mask is made; with a form beside them none is."""
    ahead: list[int] = []

    class Watched(DecodeStep):
        def _launch_ahead(self, one: flight.Flight) -> flight.Flight:
            ahead.append(len(one.rows))
            return super()._launch_ahead(one)

    draws: list[Draw] = []
    real = flight.draw
    monkeypatch.setattr(flight, "draw", lambda x, d: (draws.extend(d), real(x, d))[1])
    step = Watched(target("llama"), SlotCaches(target("llama").model), None)
    run(step, [make_row(PROMPT, max_tokens=6, ignore_eos=True)])
    assert len(ahead) == 5
    assert {d.allowed for d in draws} == {None}
    run(step, [held(max_tokens=6)])
    assert len(ahead) == 5


def test_the_first_draft_of_a_head_keeps_to_it() -> None:
    """From a head's own columns; a later draft may not, as those before it are not known."""
    columns = mx.array([5, 3, 4])
    logits = mx.array([[3.0, 1.0, 2.0]])
    row = held((9,))
    assert draw_drafts(logits, columns, VOCABULARY, [row], 0).tokens.tolist() == [3]
    assert draw_drafts(logits, columns, VOCABULARY, [row], 1).tokens.tolist() == [5]
    sampled = held((9,), temperature=1.0, acceptance="rejection")
    drawn = draw_drafts(logits, columns, VOCABULARY, [sampled], 0)
    assert drawn.tokens.tolist() == [3]
    assert drawn.logprobs[0] is not None
    assert drawn.logprobs[0].tolist() == [-np.inf, 0.0, -np.inf]


def allowed_after(context: Context) -> list[bool]:
    """Which of the toy's three ids may come: two of them, or one."""
    source = sum((i + 1) * t for i, t in enumerate(context))
    return [(source + t) % 3 != 0 and (source % 4 != 0 or t != source % 3) for t in range(3)]


def judge_of(rule: str, drafter: laws.Drafter, *, masks: str) -> laws.Judge:
    """The real rule on what the real sampling makes of the toy's logits.

    Parameters
    ----------
    masks
        Where the form holds: "each" position, the "first" alone, or "none".
    """
    params = SamplingParams(temperature=0.8)

    def judge(context: Context, drafts: laws.Drafts) -> Chances:
        befores = [context + drafts[:i] for i in range(len(drafts) + 1)]
        logits = np.log(np.array([laws.target(b) + 0.05 for b in befores]))
        rows, right = [], True
        for i, before in enumerate(befores):
            if i:
                right = right and allowed_after(befores[i - 1])[drafts[i - 1]]
            holds = right and (masks == "each" or (masks == "first" and i == 0))
            rows.append(allowed_after(before) if holds else [True] * 3)
        d = Draw(params, 0, len(context), context + drafts, len(befores), mx.array(rows))
        scores = shaped(adjusted(mx.array(logits.astype(np.float32)), d), params)
        width = len(drafter.columns or range(laws.VOCABULARY))
        q = np.array([drafter.q(before) for before in befores[:-1]]).reshape(-1, width)
        return chances(
            rule,
            mx.softmax(scores.astype(mx.float64), axis=-1),
            mx.array(drafts, dtype=mx.int32),
            None if drafter.certain else mx.array(q, dtype=mx.float64),
            mx.array(drafter.columns) if drafter.columns else None,
        )

    return judge


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("drafter", ["skewed", "reduced", "certain"])
@pytest.mark.parametrize("rule", laws.RULES)
def test_the_law_is_the_targets_among_what_may_come(rule: str, drafter: str, depth: int) -> None:
    """By enumeration, with drafts that may not come: nothing behind those counts."""
    exact: laws.Law = {}
    for output in product(range(laws.VOCABULARY), repeat=laws.LENGTH):
        exact[output] = 1.0
        for i, token in enumerate(output):
            before = laws.PROMPT + output[:i]
            weights = ((laws.target(before) + 0.05) ** (1 / 0.8)) * np.array(allowed_after(before))
            exact[output] *= float(weights[token] / weights.sum())
    d = laws.DRAFTERS[drafter]
    assert sum(exact.values()) == pytest.approx(1)
    law = laws.output_law(judge_of(rule, d, masks="each"), d, depth)
    assert laws.distance(law, exact) < 1e-5
    for masks in ("none", *(["first"] if depth else [])):
        broken = laws.output_law(judge_of(rule, d, masks=masks), d, depth)
        assert laws.distance(broken, exact) > laws.CAUGHT


@pytest.mark.parametrize("rule", ["coupled", *laws.RULES])
def test_the_step_keeps_the_law(rule: str) -> None:
    """A real model, drafts drawn on the device, of which some may not come."""
    model = build("llama", sharp=2.0)
    params = SamplingParams(temperature=1.6)

    def after(*said: int) -> Any:
        logits = np.array(model(mx.array([[*SHORT, *said]])))[0, -1]
        may = np.array([may_follow(said, t) for t in range(VOCABULARY)])
        top = np.sort(np.where(may, logits, -np.inf))[-3]  # the step's own top_k is of what may
        return processed(np.where(may & (logits >= top), logits, -np.inf), (), params)

    first = after()
    law = {
        (int(a), int(b)): float(first[a] * second[b])
        for a in np.flatnonzero(first)
        for second in [after(int(a))]
        for b in np.flatnonzero(second)
    }
    ids = sorted({b for pair in law for b in pair})[:-1]
    shares = np.arange(1, len(ids) + 1, dtype=np.float32)
    drafter = DrawnDrafter(ids, shares / shares.sum())
    step = DecodeStep(Target(model), SlotCaches(model, 16), drafter)
    counts = dict.fromkeys(law, 0)
    for batch in range(12):
        rows = [
            held(
                SHORT, i, seed=batch * 16 + i, max_tokens=3, depth=2, acceptance=rule,
                temperature=1.6, top_k=3,
            )
            for i in range(16)
        ]  # fmt: skip
        run(step, rows)
        for row in rows:
            counts[row.output[0], row.output[1]] += 1
    assert p_value(np.array(list(counts.values())), np.array(list(law.values()))) > UNLIKELY
