"""One decode cycle: ends inside a block, failing drafters, logits that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.decoding.params import MAX_DEPTH, GenerationMode
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.rows import as_ar, make_row, run, start
from tests.decoding.toy import Context, GuessDrafter, ToyStep, finish, toy_row
from tests.tiny import VOCABULARY, build

PROMPT: Context = (1, 2, 3)
END = 9
SCRIPT = (4, 5, 6, 7, 8, 4, 5, 6, 7, 8)
"""What the scripted target says after the prompt."""


def scripted(script: Sequence[int]) -> Callable[[Context, int], int]:
    """A target that says a script while the text before is right, and nonsense after."""

    def choose(context: Context, position: int) -> int:
        at = position - len(PROMPT)
        right = context == (*PROMPT, *script[:at])
        return script[at] if right and at < len(script) else 0

    return choose


def drafts_of(script: Sequence[int]) -> GuessDrafter:
    return GuessDrafter(
        lambda ids, depth: list(script[len(ids) - len(PROMPT) : len(ids) - len(PROMPT) + depth])
    )


def decoded(
    monkeypatch: pytest.MonkeyPatch, script: Sequence[int], **options: Any
) -> tuple[Row, str, int]:
    """Run a script with a drafter that knows it: the row, how it ended, and the forwards."""
    toy = ToyStep(monkeypatch, scripted(script), vocabulary=10)
    row = toy_row(PROMPT, end_ids=(END,), **options)
    outcome = finish(toy.make(drafts_of(script)), row)
    assert outcome.error is None
    assert outcome.ended is not None
    return row, outcome.ended, toy.target.forwards - 1  # one forward was the prefill


@pytest.mark.parametrize("depth", [0, 1, 3, 7])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_an_end_token_inside_a_block_ends_the_row_there(
    monkeypatch: pytest.MonkeyPatch, at: int, depth: int
) -> None:
    script = (*SCRIPT[:at], END, *SCRIPT)
    row, ended, _ = decoded(monkeypatch, script, depth=depth, max_tokens=9)
    assert (row.output, ended) == (list(SCRIPT[:at]), "stop")


@pytest.mark.parametrize("depth", [0, 2, 7])
def test_a_stop_string_inside_a_block_ends_the_row_there(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    stop = chr(0x4E00 + 6) + chr(0x4E00 + 7)
    row, ended, _ = decoded(monkeypatch, SCRIPT, depth=depth, stop=stop)
    assert (row.output, ended) == ([4, 5, 6, 7], "stop")
    assert row.text.text == chr(0x4E00 + 4) + chr(0x4E00 + 5)
    assert row.text.finish() == ""


@pytest.mark.parametrize("depth", [0, 1, 3, 16])
@pytest.mark.parametrize("limit", [1, 2, 4, 5])
def test_max_tokens_is_never_passed(
    monkeypatch: pytest.MonkeyPatch, limit: int, depth: int
) -> None:
    row, ended, forwards = decoded(monkeypatch, SCRIPT, depth=depth, max_tokens=limit)
    assert (row.output, ended) == (list(SCRIPT[:limit]), "length")
    assert forwards == -(-limit // (depth + 1))


@pytest.mark.parametrize("depth", [0, 3, 16])
def test_the_context_ends_the_row(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    row, ended, _ = decoded(monkeypatch, SCRIPT, depth=depth, context_length=len(PROMPT) + 5)
    assert (row.output, ended) == (list(SCRIPT[:5]), "length")
    assert row.committed <= row.context_length


def test_max_tokens_on_an_end_token_is_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (*SCRIPT[:3], END)
    row, ended, _ = decoded(monkeypatch, script, depth=2, max_tokens=4)
    assert (row.output, ended) == (list(SCRIPT[:3]), "stop")


def test_tokens_carry_the_text_that_they_release(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyStep(monkeypatch, scripted(SCRIPT), vocabulary=10)
    row = toy_row(PROMPT, depth=2)
    step = toy.make(drafts_of(SCRIPT))
    start(step, row, chunk=999)
    (outcome,) = step.cycle([row])
    assert [t.id for t in outcome.tokens] == [4, 5, 6]
    assert [t.text for t in outcome.tokens] == [chr(0x4E00 + i) for i in (4, 5, 6)]
    assert (outcome.drafted, outcome.accepted) == (2, 2)
    assert (row.committed, row.pending) == (5, [6])


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_cycle_reports_what_was_drafted_and_right(
    monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    toy = ToyStep(monkeypatch, scripted(SCRIPT), vocabulary=10)
    guess = [1 if i == wrong else SCRIPT[i] for i in range(3)]
    drafter = GuessDrafter(lambda ids, depth: guess)
    row = toy_row(PROMPT, depth=3)
    step = toy.make(drafter)
    start(step, row, chunk=999)
    (outcome,) = step.cycle([row])
    assert [t.id for t in outcome.tokens] == list(SCRIPT[: wrong + 1])
    assert (outcome.drafted, outcome.accepted) == (3, wrong)
    assert drafter.observed == [(3, wrong)]


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_wrong_draft_leaves_pending_what_the_caches_lost(
    monkeypatch: pytest.MonkeyPatch, recurrent: bool
) -> None:
    toy = ToyStep(monkeypatch, scripted(SCRIPT), vocabulary=10)
    row = toy_row(PROMPT, depth=2)
    step = toy.make(GuessDrafter(lambda ids, depth: [4, 1]), recurrent=recurrent)
    start(step, row, chunk=999)
    step.cycle([row])
    assert row.ids == [*PROMPT, 4, 5]
    assert row.pending == ([3, 4, 5] if recurrent else [5])


@given(
    mode=st.sampled_from(GenerationMode),
    wanted=st.none() | st.integers(0, 16),
    limit=st.integers(1, 30),
    context=st.integers(4, 40),
    produced=st.integers(0, 40),
)
def test_depth_and_room_of_a_row(
    mode: GenerationMode, wanted: int | None, limit: int, context: int, produced: int
) -> None:
    row = toy_row(PROMPT, context_length=context, mode=mode, depth=wanted, max_tokens=limit)
    row.ids += [0] * produced
    assert row.room == min(limit - produced, context - 3 - produced)
    if mode is GenerationMode.AR or 3 + produced > MAX_DEPTH:  # nothing is committed yet
        assert row.depth == 0
    else:
        most = MAX_DEPTH if wanted is None else wanted
        assert row.depth == max(0, min(most, row.room - 1))


def raises(ids: Context, depth: int) -> list[int]:
    raise LookupError("no more guesses")


FAULTS: dict[str, tuple[Callable[[Context, int], Any], str]] = {
    "raises": (raises, "guess: LookupError: no more guesses"),
    "too_many": (
        lambda ids, depth: [4] * (depth + 1),
        "guess: ValueError: proposed [4, 4, 4], not at most 2 ids below 10",
    ),
    "too_high": (
        lambda ids, depth: [10],
        "guess: ValueError: proposed [10], not at most 2 ids below 10",
    ),
    "negative": (
        lambda ids, depth: [4, -1],
        "guess: ValueError: proposed [4, -1], not at most 2 ids below 10",
    ),
    "no_list": (lambda ids, depth: None, "guess: TypeError: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_drafter_costs_only_speed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    guess, message = FAULTS[fault]
    toy = ToyStep(monkeypatch, scripted(SCRIPT), vocabulary=10)
    row = toy_row(PROMPT, depth=2, max_tokens=3)
    step = toy.make(GuessDrafter(guess))
    start(step, row, chunk=999)
    (outcome,) = step.cycle([row])
    assert [t.id for t in outcome.tokens] == [4]
    assert outcome.drafted == 0
    assert (row.draft_error or "").startswith(message)
    assert finish(step, row).ended == "length"
    assert row.output == list(SCRIPT[:3])


def test_a_drafter_that_forgets_a_row_is_reported_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgets(GuessDrafter):
        def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[int]]:
            return [[4]]

    toy = ToyStep(monkeypatch, scripted(SCRIPT), vocabulary=10)
    rows = [toy_row(PROMPT, depth=1, number=i) for i in range(2)]
    step = toy.make(Forgets(lambda ids, depth: []), slots=2)
    for row in rows:
        start(step, row, chunk=999)
    outcomes = step.cycle(rows)
    assert [[t.id for t in o.tokens] for o in outcomes] == [[4], [4]]
    assert all(row.draft_error is not None for row in rows)


def test_no_drafter_is_asked_where_no_row_wants_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyStep(monkeypatch, scripted(SCRIPT), vocabulary=10)
    row = toy_row(PROMPT, mode="ar", max_tokens=3)
    finish(toy.make(GuessDrafter(raises)), row)
    assert (row.output, row.draft_error) == (list(SCRIPT[:3]), None)


def test_caches_without_rollback_take_no_drafts() -> None:
    model = build("llama")
    step = DecodeStep(Target(model), StockCaches(model), GuessDrafter(raises))
    row = make_row((5, 6, 7), max_tokens=3)
    run(step, [row])
    assert step.drafter is None
    assert (len(row.output), row.draft_error) == (3, None)


POISON = 99


@cache
def poisoned() -> Any:
    """A model with one token whose embedding is NaN: whoever reads it, its slot is poisoned."""
    model = build("llama")
    table = mx.array(model.model.embed_tokens.weight)
    table[POISON] = float("nan")
    model.model.embed_tokens.weight = table
    return model


def alone(model: Any, prompt: Context, count: int) -> list[int]:
    row = as_ar(make_row(prompt, max_tokens=count, ignore_eos=True))
    run(DecodeStep(Target(model), SlotCaches(model), None), [row])
    return row.output


@pytest.mark.parametrize("slots", [1, 3])
def test_the_row_fails_and_its_slot_serves_the_next_one(slots: int) -> None:
    caches = SlotCaches(poisoned(), slots=slots)
    step = DecodeStep(Target(poisoned()), caches, None)
    prompts = [(5, 6, 7, 8, 9, 10), (5, POISON, 7), (60, 61, 62)]
    middle = min(1, slots - 1)
    if slots == 1:
        prompts = prompts[1:2]
    rows = [
        as_ar(make_row(p, number=i, max_tokens=12, ignore_eos=True)) for i, p in enumerate(prompts)
    ]
    for row in rows:
        start(step, row, chunk=999)
    outcomes = step.cycle(rows)
    failed = outcomes[middle]
    assert failed.tokens == ()
    assert failed.error == "the model's logits are not finite (NaN or infinity) at token 3"
    assert [o.error for o in outcomes if o is not failed] == [None] * (slots - 1)
    assert not mx.all(mx.isfinite(caches.contents(middle, 3)[0])).item()

    step.release(rows[middle], wipe=True)
    assert all(bool(mx.all(a == 0)) for a in caches.contents(middle, 3))
    rows[middle] = as_ar(make_row((90, 91), number=middle, max_tokens=11, ignore_eos=True))
    start(step, rows[middle])
    for _ in range(11):
        assert {o.error for o in step.cycle(rows)} == {None}
    prompts[middle] = (90, 91)
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.output == alone(poisoned(), prompt, len(row.output))


def test_without_the_wipe_the_next_row_would_fail() -> None:
    """The neighbour is longer, so the old keys of the slot are masked, not overwritten."""
    step = DecodeStep(Target(poisoned()), SlotCaches(poisoned(), slots=2), None)
    rows = [
        as_ar(make_row((5, 6, 7, 8, 9, 10), number=0)),
        as_ar(make_row((5, 6, POISON, 7), number=1)),
    ]
    for row in rows:
        start(step, row, chunk=999)
    step.release(rows[1])
    rows[1] = start(step, as_ar(make_row((90,), number=1)))
    assert step.cycle(rows)[1].error is not None


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_tokens_before_the_failure_are_kept(value: str) -> None:
    """The fifth token's logits are spoiled, in a block with drafts and without."""
    model = build("llama")
    truth = alone(model, (5, 6, 7), 8)

    class Spoiled(Target):
        def logits(self, hidden: mx.array) -> mx.array:
            logits = super().logits(hidden)
            spoil = mx.argmax(logits, axis=-1) == truth[4]
            return mx.where(spoil[:, None], float(value), logits)

    assert truth.index(truth[4]) == 4
    drafter = GuessDrafter(lambda ids, depth: truth[len(ids) - 3 : len(ids) - 3 + depth])
    step = DecodeStep(Spoiled(model), SlotCaches(model), drafter)
    row = make_row((5, 6, 7), depth=2, ignore_eos=True)
    outcome = finish(step, row)
    assert row.output == truth[:4]
    assert outcome.error == "the model's logits are not finite (NaN or infinity) at token 7"


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("kind", ["llama", "qwen3_next", "deepseek_v3"])
def test_a_draft_whose_logits_are_not_finite_costs_only_speed(kind: str, slots: int) -> None:
    """The drafts spoil their whole block, though the target would never have said them."""
    model = build(kind)
    table = mx.array(model.model.embed_tokens.weight)
    table[200] = float("nan")
    model.model.embed_tokens.weight = table
    truth = alone(model, (5, 6, 7), 8)
    assert 200 not in truth
    step = DecodeStep(
        Target(model),
        SlotCaches(model, slots=slots),
        GuessDrafter(lambda ids, depth: [*truth[len(ids) - 3 :][:1], 200][:depth]),
    )
    row = make_row((5, 6, 7), depth=2, max_tokens=8, ignore_eos=True)
    # A longer neighbour: what the drafts left behind in the row's slot is masked, not overwritten.
    long = [as_ar(make_row((9, 8, 7, 6, 5, 4, 3, 2, 1), number=1, max_tokens=9, ignore_eos=True))]
    rows = [row, *long[: slots - 1]]
    run(step, rows)
    assert row.output == truth
    assert row.draft_error == f"dropped [{truth[5]}, 200]: their logits are not finite"


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_drafts_give_the_plain_output(data: st.DataObject) -> None:
    """Whatever is proposed, in whatever number, three rows beside each other keep their text."""
    prompts = [(5, 6, 7), (90,), (3, 1, 4, 1, 5)]
    drafter = GuessDrafter(
        lambda ids, depth: data.draw(
            st.lists(st.sampled_from([0, 5, 40, VOCABULARY - 1]), max_size=depth)
        )
    )
    step = DecodeStep(TARGET, SlotCaches(TARGET.model, slots=3), drafter)
    rows = [make_row(p, number=i, max_tokens=4 + i, **SAMPLED) for i, p in enumerate(prompts)]
    run(step, rows)
    assert [row.output for row in rows] == PLAIN


SAMPLED = {"temperature": 1.0, "top_k": 5, "seed": 3}
TARGET = Target(build("llama"))


def plain(prompt: Context, limit: int) -> list[int]:
    row = as_ar(make_row(prompt, max_tokens=limit, **SAMPLED))
    run(DecodeStep(TARGET, SlotCaches(TARGET.model), None), [row])
    return row.output


PLAIN = [plain(p, 4 + i) for i, p in enumerate([(5, 6, 7), (90,), (3, 1, 4, 1, 5)])]
