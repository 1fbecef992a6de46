"""A head is fed every pair once, in its place; whatever it drafts, the ids are those of mode ar."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.depth import FLAT, PROBE_EVERY, CostCurve, Costs, CostSurface, HeadCost
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.lookup import LookupDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.heads import FailingHead, TrueHead
from tests.decoding.rows import as_ar, make_row, run, start
from tests.tiny import CONFIGS, VOCABULARY, build

PROMPTS = ((5, 6, 7, 8, 9, 40, 41), (90, 2), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3))
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 2},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "penalty_context": 6},
}
LENGTH = 20


@cache
def target(kind: str) -> Target:
    return Target(build(kind))


@cache
def truth(kind: str, prompt: tuple[int, ...], sampler: str) -> list[int]:
    row = as_ar(make_row(prompt, max_tokens=LENGTH, ignore_eos=True, **SAMPLERS[sampler]))
    run(DecodeStep(target(kind), SlotCaches(target(kind).model), None), [row])
    return row.ids


def head_drafter(head: TrueHead, slots: int, **options: Any) -> HeadDrafter:
    return HeadDrafter(head, SlotCaches(head, slots), VOCABULARY, **options)


def rows_of(
    kind: str, sampler: str, count: int, **options: Any
) -> tuple[list[Row], list[list[int]]]:
    settings = {"max_tokens": LENGTH, "ignore_eos": True, **SAMPLERS[sampler], **options}
    rows = [make_row(PROMPTS[i], number=i, **settings) for i in range(count)]
    return rows, [truth(kind, PROMPTS[i], sampler) for i in range(count)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("wrong_every", [10**6, 3])
@pytest.mark.parametrize("kind", [k for k in CONFIGS if k != "nemotron_h"])
def test_ids_and_acceptance(kind: str, wrong_every: int, sampler: str, count: int) -> None:
    rows, truths = rows_of(kind, sampler, count, depth=3)
    drafter = head_drafter(TrueHead(truths, wrong_every), count)
    step = DecodeStep(target(kind), SlotCaches(target(kind).model, count), drafter)
    drafted = accepted = 0
    observe = drafter.observe

    def counting(row: Row, count: int, tokens: list[int]) -> None:
        nonlocal drafted, accepted
        drafted, accepted = drafted + count, accepted + len(tokens) - 1
        observe(row, count, tokens)

    drafter.observe = counting  # type: ignore[assignment,method-assign]
    run(step, rows)
    assert [row.ids for row in rows] == truths
    assert [row.draft_error for row in rows] == [None] * count
    assert accepted == drafted if wrong_every == 10**6 else 0 < accepted < drafted


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_every_pair_is_fed_in_its_place(kind: str) -> None:
    """The head's cache holds the target's own state and the next token at every position."""
    rows, truths = rows_of(kind, "greedy", 3, depth=2)
    drafter = head_drafter(TrueHead(truths, 3), 3)
    step = DecodeStep(target(kind), SlotCaches(target(kind).model, 3), drafter)
    run(step, rows)
    for row in rows:
        state = drafter._states[row.request_id]
        assert state.fed >= len(row.ids) - 5
        keys, values = drafter.caches.contents(row.place, state.fed)
        states = target(kind).forward(mx.array([row.ids]), None)[0, : state.fed]
        assert mx.allclose(keys[0], states, rtol=1e-4, atol=1e-5)
        assert values[0, :, 0].tolist() == row.ids[1 : state.fed + 1]


def test_an_ar_row_costs_the_head_nothing() -> None:
    rows, truths = rows_of("llama", "greedy", 1)
    drafter = head_drafter(TrueHead(truths), 1)
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter), [as_ar(rows[0])])
    assert rows[0].ids == truths[0]
    assert drafter.caches.nbytes == 0


def test_long_prompts_are_fed_as_they_are_prefilled() -> None:
    prompt = list(range(1, 100))
    drafter = head_drafter(TrueHead([prompt]), 1)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
    row = make_row(prompt)
    step.admit(row)
    fed = []
    for count in (10, 10, 70, 8):
        step.prefill([row], [count])
        fed.append(drafter._states[row.request_id].fed)
    assert fed == [0, 19, 89, 89]  # all that is known but one, once there are enough
    values = drafter.caches.contents(0, 89)[1]
    assert values[0, :, 0].tolist() == prompt[1:90]


def test_neighbours_are_fed_together_where_one_has_much_to_feed() -> None:
    prompts = [list(range(1, 41)), list(range(100, 130))]
    drafter = head_drafter(TrueHead(prompts), 2)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model, 2), drafter)
    rows = [make_row(prompt, number=n) for n, prompt in enumerate(prompts)]
    for row in rows:
        step.admit(row)
    fed = []
    for counts in ([10, 6], [10, 6], [19, 17]):
        step.prefill(rows, counts)
        fed.append([drafter._states[row.request_id].fed for row in rows])
    assert fed == [[0, 0], [19, 11], [38, 28]]
    for row, prompt, count in zip(rows, prompts, fed[-1], strict=True):
        values = drafter.caches.contents(row.place, count)[1]
        assert values[0, :, 0].tolist() == prompt[1 : count + 1]


@pytest.mark.parametrize("fault", ["raises", "nan"])
def test_a_head_that_fails_costs_speed_only(fault: str) -> None:
    rows, truths = rows_of("llama", "greedy", 1, depth=2)
    head = FailingHead(truths, fault, after=12)
    drafter = head_drafter(head, 1)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
    run(step, rows)
    (row,) = rows
    assert row.ids == truths[0]
    reason = "ZeroDivisionError: no luck" if fault == "raises" else "its logits are not finite"
    assert row.draft_error == f"head: {reason}"
    assert not row.drafting
    assert row.depth == 0


def priced(curve: CostCurve, first: float, step: float) -> Costs:
    """One row's costs."""
    return Costs(CostSurface(curve), {1: HeadCost(first, step)})


DEAR = CostCurve((1, 2, 17), (1.0, 1.9, 15.4))
CHEAP = priced(CostCurve((1, 17), (1.0, 2.0)), 0.3, 0.2)


def test_a_head_that_is_not_worth_it_is_only_probed() -> None:
    prompt = PROMPTS[0]
    settings: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "depth": None}
    plain = as_ar(make_row(prompt, **settings))
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), None), [plain])
    drafter = head_drafter(TrueHead([plain.ids], 1), 1, costs=priced(DEAR, 0.2, 0.1))
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
    row = make_row(prompt, **settings)
    made: list[int] = []
    start(step, row, chunk=999)
    while row.room:
        made.append(step.cycle([row])[0].drafted)
    assert row.ids == plain.ids
    probes = [i for i, drafted in enumerate(made) if drafted]
    assert set(made) <= {0, 1}
    assert len(probes) >= 200 // (PROBE_EVERY + 2) - 1
    assert all(b - a >= PROBE_EVERY for a, b in pairwise(probes))


def test_each_row_is_drafted_for_by_what_promises_most() -> None:
    """Text in a loop is copied for nothing; the head drafts where nothing was seen before."""
    loop, fresh = [1, 2, 3] * 6, list(range(40, 58))
    head = head_drafter(TrueHead([loop, fresh]), 2, costs=priced(FLAT, 0.1, 0.05))
    drafter = CombinedDrafter(head, LookupDrafter())
    rows = [make_row(loop, number=0), make_row(fresh, number=1)]
    for row in rows:
        row.committed = len(row.ids) - 1
    drafter.see(rows, [0, 0], mx.zeros((2, 17, 4)))
    drafter.text.observe(rows[0], 0, [1, 2, 3, 1, 2, 3, 1, 2])
    drafts = drafter.propose(rows, [4, 4])
    assert drafts.known[0] == [1, 2, 3, 1]
    assert drafts.known[1] is None
    assert drafts.counts[1] > 0
    assert drafts.compute is not None


def unable() -> mx.array:
    """An array that can be built and not evaluated, as one for which a device has no memory."""
    half = mx.zeros((1, 4, 4), mx.float16)
    index = mx.zeros((1,), mx.uint32)
    return mx.gather_mm(half, half, rhs_indices=index).sum().astype(mx.float32)


def test_what_cannot_be_evaluated() -> None:
    with pytest.raises(RuntimeError):
        mx.eval(unable())


@pytest.mark.parametrize("when", ["prefill", "cycle"])
def test_a_head_that_cannot_be_evaluated_costs_speed_only(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tuple(range(1, 60))
    plain = as_ar(make_row(prompt, max_tokens=LENGTH, ignore_eos=True))
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), None), [plain])
    head = TrueHead([plain.ids])
    feed = head.feed

    def failing(features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        cache[0].begin(cache[0].span)
        keys = features + unable() if (tokens.shape[1] > 16) == (when == "prefill") else features
        return feed(keys, tokens, cache)

    monkeypatch.setattr(head, "feed", failing)
    drafter = head_drafter(head, 1)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
    row = make_row(prompt, max_tokens=LENGTH, ignore_eos=True, depth=2)
    run(step, [row], chunk=100)
    assert row.ids == plain.ids
    assert (row.draft_error or "").startswith("head: RuntimeError: ")
    step.release(row)
    monkeypatch.undo()
    again = make_row(prompt, max_tokens=LENGTH, ignore_eos=True, depth=2)
    run(step, [again], chunk=100)
    assert again.ids == plain.ids
    assert again.draft_error is None


def test_a_forward_that_fails_does_not_outlive_its_row() -> None:
    """The head's caches depended on it: they are wiped with the target's."""
    prompt = tuple(range(1, 60))
    truths = [list(prompt) + [0] * 20]
    drafter = head_drafter(TrueHead(truths), 1)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
    row = make_row(prompt)
    step.admit(row)
    step.prefill([row], [40])
    row.committed = 39
    drafter.caches.layers[0].keys = drafter.caches.layers[0].keys + unable()
    step.release(row, wipe=True)
    assert drafter.caches.nbytes == 0


def test_depth_0_costs_the_head_nothing() -> None:
    rows, truths = rows_of("llama", "greedy", 1, depth=0)
    drafter = head_drafter(TrueHead(truths), 1)
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter), rows)
    assert rows[0].ids == truths[0]
    assert drafter.caches.nbytes == 0
    assert drafter._states == {}


def test_a_failing_head_is_no_matter_of_rows_in_mode_ar() -> None:
    rows, truths = rows_of("llama", "greedy", 3, depth=2)
    as_ar(rows[1])
    drafter = head_drafter(FailingHead(truths, "raises", after=3), 3)
    step = DecodeStep(target("llama"), SlotCaches(target("llama").model, 3), drafter)
    run(step, rows)
    assert [row.ids for row in rows] == truths
    assert rows[0].draft_error == rows[2].draft_error == "head: ZeroDivisionError: no luck"
    assert rows[1].draft_error is None


def test_a_fixed_depth_is_drafted_for_by_the_head_where_ids_depend_on_it() -> None:
    loop = [1, 2, 3] * 6
    for rule, by_head in (("coupled", False), ("rejection", True), ("block", True)):
        head = head_drafter(TrueHead([loop]), 1, costs=CHEAP)
        drafter = CombinedDrafter(head, LookupDrafter())
        row = make_row(loop, depth=2, temperature=1.0, acceptance=rule)
        row.committed = len(row.ids) - 1
        drafter.see([row], [0], mx.zeros((1, 17, 4)))
        (known,) = drafter.propose([row], [2]).known
        assert (known is None) == by_head
