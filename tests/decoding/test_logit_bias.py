"""A bias on some logits: what it does to the law, and that drafts change nothing about it."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.decoding import sampling
from mtplx_kernel.decoding.acceptance import Chances, chances
from mtplx_kernel.decoding.draft_sampling import draw_drafts, rank_drafts
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.decoding.sampling import Draw, adjusted, biased, draw, shaped
from mtplx_kernel.decoding.step import DecodeStep
from tests.decoding import test_acceptance_law as laws
from tests.decoding.drafters import GUESSES, ForcedDrafter
from tests.decoding.rows import as_ar, make_row, run
from tests.decoding.toy import Context, GuessDrafter
from tests.decoding.twins import SecondHead, forking_step, target
from tests.tiny import VOCABULARY

PROMPT = (5, 6, 7, 8, 9, 40, 41)
PROMPTS = (PROMPT, (90, 12), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9), (60, 61, 62))
BIAS = {i: ((i * 37) % 17 - 8) / 2 for i in range(0, 250, 3)}
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"logit_bias": BIAS},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "seed": 2, "logit_bias": BIAS},
    "penalties": {
        "temperature": 0.7,
        "repetition_penalty": 1.3,
        "penalty_context": 6,
        "logit_bias": BIAS,
    },
}
KINDS = ("llama", "qwen3_next")
RULES = ("coupled", "rejection", "block")


@cache
def truth(kind: str, sampler: str, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    """The output of mode ar, on mlx-lm's own caches."""
    row = as_ar(make_row(prompt, ignore_eos=True, **SAMPLERS[sampler]))
    run(DecodeStep(target(kind), StockCaches(target(kind).model), None), [row], chunk=100)
    return row.output


def test_it_is_added_to_its_ids_alone() -> None:
    logits = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
    expected = logits.copy()
    expected[:, 4] += np.float32(2.5)
    expected[:, 0] -= np.float32(0.3)
    found = biased(mx.array(logits), {4: 2.5, 0: -0.3})
    assert np.array_equal(np.array(found), expected)


def test_it_comes_before_the_penalties() -> None:
    """A penalty on what was likely before the bias would divide 3 by 2, not multiply -1 by 2."""
    params = SamplingParams(logit_bias={1: -4.0}, repetition_penalty=2.0, presence_penalty=0.25)
    d = Draw(params, 0, 2, (1, 2), 1)
    assert adjusted(mx.array([[1.0, 3.0, 5.0]]), d).tolist() == [[1.0, -2.25, 2.25]]


def test_without_one_the_logits_are_the_same_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed: neither for rows without a bias, nor for those beside them."""
    calls: list[int] = []

    def counting(logits: mx.array, bias: Any) -> mx.array:
        calls.append(logits.shape[0])
        return biased(logits, bias)

    monkeypatch.setattr(sampling, "biased", counting)
    logits = mx.zeros((3, 5))
    assert adjusted(logits, Draw(SamplingParams(temperature=1.0), 0, 0, (), 3)) is logits
    jobs = [Draw(SamplingParams(temperature=t), 0, 0, (), 1) for t in (0.0, 0.5)]
    mx.eval(draw(logits[:2], jobs))
    assert calls == []
    jobs = [*jobs, Draw(SamplingParams(logit_bias={2: 1}), 0, 0, (), 1)]
    assert draw(logits, jobs).tolist()[2] == 2
    assert calls == [1]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("guess", ["right", "wrong", "wrong_at_1", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_mtp_equals_ar(kind: str, guess: str, sampler: str) -> None:
    known = truth(kind, sampler)
    drafter = ForcedDrafter({"row-0": known}, GUESSES[guess])
    step = DecodeStep(target(kind), SlotCaches(target(kind).model), drafter)
    row = make_row(PROMPT, depth=3, ignore_eos=True, **SAMPLERS[sampler])
    run(step, [row])
    assert row.output == known
    if guess == "right":
        assert drafter.accepted == drafter.drafted > 0


@pytest.mark.parametrize("depth", [0, 1, 2, 7, 16])
def test_every_depth_equals_ar(depth: int) -> None:
    known = truth("llama", "sampled")
    drafter = ForcedDrafter({"row-0": known}, GUESSES["wrong_at_2"])
    row = make_row(PROMPT, depth=depth, ignore_eos=True, **SAMPLERS["sampled"])
    run(DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter), [row])
    assert row.output == known


def test_it_changes_the_text() -> None:
    plain = as_ar(make_row(PROMPT, ignore_eos=True))
    run(DecodeStep(target("llama"), StockCaches(target("llama").model), None), [plain])
    assert plain.output != truth("llama", "greedy")


@pytest.mark.parametrize("guess", ["right", "random", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_batch_have_their_own(kind: str, guess: str) -> None:
    """Rows with a bias beside one without; without drafts, forwards are launched ahead."""
    samplers = ["greedy", "sampled", "penalties"]
    plain = as_ar(make_row(PROMPTS[3], ignore_eos=True))
    run(DecodeStep(target(kind), StockCaches(target(kind).model), None), [plain], chunk=100)
    known = [truth(kind, s, p) for s, p in zip(samplers, PROMPTS, strict=False)] + [plain.output]
    outputs = {f"row-{i}": ids for i, ids in enumerate(known)}
    drafter = ForcedDrafter(outputs, GUESSES[guess]) if guess in GUESSES else None
    rows = [
        make_row(p, i, depth=1 + i, ignore_eos=True, **(SAMPLERS[s] if s else {}))
        for i, (p, s) in enumerate(zip(PROMPTS, [*samplers, None], strict=True))
    ]
    run(DecodeStep(target(kind), SlotCaches(target(kind).model, 4), drafter), rows)
    assert [row.output for row in rows] == known


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_heads_and_forks_equal_ar(width: int, sampler: str) -> None:
    known = truth("llama", sampler)
    step = forking_step("llama", SecondHead([[*PROMPT, *known]], 4))
    row = make_row(PROMPT, depth=2, ignore_eos=True, **SAMPLERS[sampler])
    with step.forking([width]) as figures:
        run(step, [row])
    assert row.output == known
    assert row.draft_error is None
    assert (figures.fork_attempts > 0) is (width > 1)


@pytest.mark.parametrize(
    ("mode", "rule", "temperature"),
    [("ar", "coupled", 0.0), ("ar", "coupled", 2.0), ("mtp", "coupled", 0.0)]
    + [("mtp", rule, 2.0) for rule in RULES],
)
def test_minus_100_keeps_ids_out_and_100_forces_one(
    mode: str, rule: str, temperature: float
) -> None:
    """Drafts say the ids that are kept out, and never the one that is forced."""
    likely: list[int] = []

    def output(bias: dict[int, float]) -> list[int]:
        drafter = GuessDrafter(lambda ids, depth: (likely * depth)[:depth])
        step = DecodeStep(target("llama"), SlotCaches(target("llama").model), drafter)
        row = make_row(
            PROMPT,
            mode=mode,
            depth=3,
            max_tokens=12,
            ignore_eos=True,
            temperature=temperature,
            acceptance=rule,
            logit_bias=bias,
        )
        run(step, [row])
        assert row.draft_error is None
        assert (sum(drafted for drafted, _ in drafter.observed) > 0) is (
            mode == "mtp" and bool(likely)
        )
        return row.output

    for _ in range(3):
        likely += sorted(set(output(dict.fromkeys(likely, -100.0))) - set(likely))
        assert not set(output(dict.fromkeys(likely, -100.0))) & set(likely)
    forced = min(set(range(VOCABULARY)) - set(likely))
    assert output({forced: 100.0}) == [forced] * 12


def test_a_draft_is_drawn_with_the_bias() -> None:
    """From a head's own columns, whether its row samples or not, and with forks."""
    columns = mx.array([2, 0, 5])
    logits = mx.array([[3.0, 1.0, 2.0]])

    def drafts(columns: mx.array | None, count: int = 1, **options: Any) -> Any:
        row = make_row(PROMPT, **options)
        if count > 1:
            return rank_drafts(logits, columns, 6, row, count).tolist()
        return draw_drafts(logits, columns, 6, [row], 0).tokens.tolist()

    assert drafts(columns) == [2]
    assert drafts(columns, logit_bias={5: 1.5}) == [5]
    assert drafts(columns, logit_bias={4: 100, 2: -3}) == [5]
    assert drafts(columns, 3, logit_bias={0: 2.5}) == [0, 2, 5]
    assert drafts(columns, temperature=1.0, logit_bias={0: 60}) == [0]
    rule = {"temperature": 1.0, "acceptance": "block", "logit_bias": {5: 60}}
    assert drafts(columns, **rule) == [5]
    assert drafts(None, logit_bias={1: 2.5}) == [1]


def biased_judge(rule: str, drafter: laws.Drafter, params: SamplingParams) -> laws.Judge:
    """The real rule on what the real sampling makes of the toy's logits."""

    def judge(context: Context, drafts: laws.Drafts) -> Chances:
        befores = [context + drafts[:i] for i in range(len(drafts) + 1)]
        with np.errstate(divide="ignore"):
            logits = np.log(np.array([laws.target(before) for before in befores]))
        d = Draw(params, 0, len(context), context + drafts, len(befores))
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
def test_the_law_is_the_targets_with_its_bias(rule: str, drafter: str, depth: int) -> None:
    """By enumeration: e to the bias over the temperature is a factor of each probability."""
    bias, temperature = np.array([0.0, 1.2, -0.8]), 0.8
    exact: laws.Law = {}
    for output in product(range(laws.VOCABULARY), repeat=laws.LENGTH):
        exact[output] = 1.0
        for i, token in enumerate(output):
            weights = (laws.target(laws.PROMPT + output[:i]) * np.exp(bias)) ** (1 / temperature)
            exact[output] *= float(weights[token] / weights.sum())
    d = laws.DRAFTERS[drafter]

    def law(bias: dict[int, float] | None) -> laws.Law:
        params = SamplingParams(temperature=temperature, logit_bias=bias)
        return laws.output_law(biased_judge(rule, d, params), d, depth)

    assert sum(exact.values()) == pytest.approx(1)
    assert laws.distance(law({1: 1.2, 2: -0.8}), exact) < 1e-5
    assert laws.distance(law(None), exact) > laws.CAUGHT
