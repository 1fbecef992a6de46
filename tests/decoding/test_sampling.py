"""Draws against the distributions they should follow, and filters against mlx-lm's own."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx_lm.sample_utils
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from scipy import stats

from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.decoding.sampling import Draw, draw, noise, shaped
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.rows import as_ar, make_row, run
from tests.decoding.toy import GuessDrafter
from tests.tiny import VOCABULARY, build

SIZE = 12
UNLIKELY = 1e-4
"""A p-value below this is a wrong law; the seeds are fixed, so the outcome never changes."""
TOKENS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
LAWS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 1.7},
    "top_p": {"temperature": 0.8, "top_p": 0.7},
    "min_p": {"temperature": 1.3, "min_p": 0.15},
    "top_k": {"temperature": 1.0, "top_k": 4},
    "all": {"temperature": 1.2, "top_p": 0.95, "min_p": 0.05, "top_k": 6},
    "bias": {"temperature": 1.1, "top_p": 0.9, "logit_bias": {0: 1.5, 4: -2, 9: 0.7, 5: -100}},
    "penalties": {
        "temperature": 0.9,
        "top_p": 0.9,
        "repetition_penalty": 1.4,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.25,
        "penalty_context": 7,
    },
}


def random_logits(rows: int, size: int = SIZE, seed: int = 0, scale: float = 1.5) -> Any:
    return np.random.default_rng(seed).normal(0.0, scale, (rows, size)).astype(np.float32)


def processed(logits: Any, tokens: tuple[int, ...], p: SamplingParams) -> Any:
    """The distribution in float64, written out from the definitions, in mlx-lm's order."""
    x = logits.astype(np.float64)
    for token, bias in (p.logit_bias or {}).items():
        x[token] += bias
    recent = tokens[-p.penalty_context :]
    for token in set(recent):
        x[token] = (
            x[token] * p.repetition_penalty if x[token] < 0 else x[token] / p.repetition_penalty
        )
    for token in set(recent):
        x[token] -= p.presence_penalty + p.frequency_penalty * recent.count(token)
    probs = np.exp(x - x.max())
    probs /= probs.sum()
    order = np.argsort(-probs)
    keep = np.ones(len(x), bool)
    above = np.concatenate([[0.0], np.cumsum(probs[order])[:-1]])
    keep[order[above >= p.top_p]] = False
    keep &= probs >= p.min_p * probs.max()
    if p.top_k:
        keep[order[p.top_k :]] = False
    probs = np.where(keep, probs, 0.0) ** (1.0 / p.temperature)
    return probs / probs.sum()


def draws_of(params: SamplingParams, logits: Any, seeds: int, positions: int) -> Any:
    """Tokens of shape (seeds, positions), drawn from the same logits at every position."""
    rows = mx.broadcast_to(mx.array(logits), (seeds * positions, logits.shape[-1]))
    if params.penalised:
        # Each draw after the same tokens, at another position.
        jobs = [
            Draw(params, s, len(TOKENS) + i, TOKENS, 1)
            for s in range(seeds)
            for i in range(positions)
        ]
    else:
        jobs = [
            Draw(params, s, len(TOKENS), TOKENS + (0,) * (positions - 1), positions)
            for s in range(seeds)
        ]
    return np.array(draw(rows, jobs)).reshape(seeds, positions)


def p_value(counts: Any, probs: Any) -> float:
    """Of a chi-square test; outcomes that cannot be must not occur, rare ones are pooled."""
    assert counts[probs == 0].sum() == 0
    expected = probs * counts.sum()
    common = expected >= 5
    rare = (probs > 0) & ~common
    observed = [*counts[common], counts[rare].sum()]
    wanted = [*expected[common], expected[rare].sum()]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    return float(stats.chisquare(observed, wanted).pvalue)


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_processed_distribution(name: str) -> None:
    params = SamplingParams(**LAWS[name])
    logits = random_logits(1)[0]
    probs = processed(logits, TOKENS, params)
    assert (probs > 0).sum() >= 3
    tokens = draws_of(params, logits, 10, 60 if params.penalised else 200)
    counts = np.bincount(tokens.ravel(), minlength=SIZE)
    assert p_value(counts, probs) > UNLIKELY


def test_the_chi_square_sees_a_wrong_temperature_and_a_wrong_order() -> None:
    """The same counts, held against nearby laws."""
    params = SamplingParams(**LAWS["top_p"])
    logits = random_logits(1)[0]
    counts = np.bincount(draws_of(params, logits, 20, 200).ravel(), minlength=SIZE)
    near = SamplingParams(temperature=1.0, top_p=0.7)
    assert p_value(counts, processed(logits, TOKENS, near)) < UNLIKELY
    plain = SamplingParams(temperature=0.8)
    assert p_value(counts, processed(logits, TOKENS, plain)) < UNLIKELY


@pytest.mark.parametrize("lag", [(0, 1), (0, 2), (1, 0), (1, 1)], ids=str)
def test_draws_at_other_positions_and_seeds_are_independent(lag: tuple[int, int]) -> None:
    """Pairs of draws that lie (seeds, positions) apart follow the product law."""
    params = SamplingParams(temperature=1.5)
    logits = random_logits(1, size=6, seed=4)[0]
    probs = processed(logits, (), params)
    tokens = draws_of(params, logits, 20, 120)
    later = tokens[lag[0] :, lag[1] :]
    earlier = tokens[: later.shape[0], : later.shape[1]]
    pairs = np.bincount((earlier * 6 + later).ravel(), minlength=36)
    assert p_value(pairs, np.outer(probs, probs).ravel()) > UNLIKELY


def test_noise_is_a_function_of_seed_and_position() -> None:
    assert mx.array_equal(noise(7, 11, 50), noise(7, 11, 50))
    assert mx.array_equal(noise(2**64 - 1, 0, 50), noise(2**64 - 1, 0, 50))
    others = [noise(s, t, 50) for s, t in [(7, 11), (7, 12), (8, 11), (11, 7), (7 + 2**32, 11)]]
    for i, one in enumerate(others):
        assert not any(mx.any(one == other).item() for other in others[:i])


def test_noise_is_gumbels() -> None:
    values = np.concatenate([np.array(noise(s, 0, 2000)) for s in range(5)])
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > UNLIKELY


def test_noise_does_not_touch_the_global_random_state() -> None:
    mx.random.seed(1)
    before = [a.tolist() for a in mx.random.state]
    mx.eval(noise(5, 6, 7))
    assert [a.tolist() for a in mx.random.state] == before


@pytest.mark.parametrize("name", LAWS)
def test_one_call_or_several_draw_the_same(name: str) -> None:
    params = SamplingParams(**LAWS[name])
    logits = mx.array(random_logits(5, seed=2))
    drafts = (7, 1, 7, 0)
    start = len(TOKENS)
    together = draw(logits, [Draw(params, 3, start, TOKENS + drafts, 5)]).tolist()
    apart = [
        draw(logits[i : i + 1], [Draw(params, 3, start + i, TOKENS + drafts[:i], 1)]).item()
        for i in range(5)
    ]
    first = draw(logits[:2], [Draw(params, 3, start, TOKENS + drafts[:1], 2)]).tolist()
    assert together == apart
    assert together[:2] == first


def test_rows_of_one_call_do_not_mix() -> None:
    options = [LAWS["penalties"], {"temperature": 0.0}, LAWS["all"], {"repetition_penalty": 1.5}]
    logits = mx.array(random_logits(8, seed=3))
    jobs = [
        Draw(SamplingParams(**o), 20 + i, len(TOKENS), (*TOKENS, i), 2)
        for i, o in enumerate(options)
    ]
    together = draw(logits, jobs).tolist()
    apart = [t for i, j in enumerate(jobs) for t in draw(logits[2 * i : 2 * i + 2], [j]).tolist()]
    assert together == apart


def mlx_lm_scores(logprobs: mx.array, p: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What mlx-lm's sampler hands to its last step, the categorical draw."""
    monkeypatch.setattr(
        mlx_lm.sample_utils, "categorical_sampling", lambda scores, temp: scores * (1.0 / temp)
    )
    sampler = mlx_lm.sample_utils.make_sampler(p.temperature, p.top_p, p.min_p, top_k=p.top_k)
    return sampler(logprobs)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", LAWS)
def test_filters_equal_mlx_lms(monkeypatch: pytest.MonkeyPatch, name: str, ties: bool) -> None:
    params = SamplingParams(**LAWS[name])
    logits = mx.array(random_logits(20, size=50, seed=5))
    if ties:
        logits = mx.round(logits)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    assert mx.array_equal(shaped(logits, params), mlx_lm_scores(logprobs, params, monkeypatch))


def test_top_k_of_the_whole_vocabulary_and_more_keeps_all() -> None:
    logits = mx.array(random_logits(3))
    everything = shaped(logits, SamplingParams(temperature=1.0))
    for k in (SIZE, SIZE + 1, 10**9):
        assert mx.array_equal(shaped(logits, SamplingParams(temperature=1.0, top_k=k)), everything)


@pytest.mark.parametrize("temperature", [1e-6, 1e-20, 1e-40, 5e-324])
def test_the_coldest_temperatures_are_greedy(temperature: float) -> None:
    logits = mx.array(random_logits(10, size=50, seed=6))
    params = SamplingParams(temperature=temperature)
    drawn = draw(logits, [Draw(params, 0, 1, (0,) * 10, 10)])
    assert drawn.tolist() == mx.argmax(logits, axis=-1).tolist()


PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.6},
    {"repetition_penalty": 0.7, "penalty_context": 3},
    {"presence_penalty": 1.1, "frequency_penalty": -0.4},
    {"frequency_penalty": 0.9, "penalty_context": 2},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_penalties_equal_mlx_lms_token_by_token(options: dict[str, Any]) -> None:
    """A draft inside the block counts for the tokens after it."""
    params = SamplingParams(**options)
    size = params.penalty_context
    processors = mlx_lm.sample_utils.make_logits_processors(
        repetition_penalty=params.repetition_penalty,
        repetition_context_size=size,
        presence_penalty=params.presence_penalty,
        presence_context_size=size,
        frequency_penalty=params.frequency_penalty,
        frequency_context_size=size,
    )
    for seed in range(20):
        source = np.random.default_rng(seed)
        # Near-even logits, so that each penalty decides.
        logits = random_logits(5, seed=seed, scale=0.5)
        drafts = [int(t) for t in source.integers(0, SIZE, 4)]
        block = draw(mx.array(logits), [Draw(params, 0, 11, [*TOKENS, *drafts], 5)]).tolist()
        expected = []
        for i in range(5):
            row = mx.array(logits[i : i + 1])
            for process in processors:
                row = process(mx.array([*TOKENS, *drafts[:i]]), row)
            expected.append(mx.argmax(row, axis=-1).item())
        assert block == expected


def test_penalties_once_a_cycle_would_differ() -> None:
    """Two likeliest tokens in turn: the first draft must rule itself out of the second place."""
    params = SamplingParams(presence_penalty=5.0)
    logits = mx.array([[3.0, 2.0, 0.0], [3.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    assert draw(logits, [Draw(params, 0, 1, [2, 0, 1], 3)]).tolist() == [0, 1, 0]
    assert [draw(logits[:1], [Draw(params, 0, 1, [2], 1)]).item()] == [0]


def test_penalised_greedy_text_equals_mlx_lms() -> None:
    model = build("llama")
    prompt = (5, 6, 7, 8, 9, 40, 41)
    processors = mlx_lm.sample_utils.make_logits_processors(
        repetition_penalty=1.3,
        repetition_context_size=9,
        presence_penalty=0.5,
        presence_context_size=9,
        frequency_penalty=0.2,
        frequency_context_size=9,
    )
    theirs = [
        token
        for token, _ in generate_step(
            mx.array(prompt), model, max_tokens=30, logits_processors=processors
        )
    ]
    row = as_ar(
        make_row(
            prompt,
            max_tokens=30,
            repetition_penalty=1.3,
            presence_penalty=0.5,
            frequency_penalty=0.2,
            penalty_context=9,
            ignore_eos=True,
        )
    )
    run(DecodeStep(Target(model), StockCaches(model), None), [row], chunk=100)
    assert row.output == theirs


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7, "top_p": 0.9}, {"presence_penalty": 1}]
)
def test_logits_without_a_distribution_give_minus_one(options: dict[str, Any]) -> None:
    nan, inf = float("nan"), float("inf")
    logits = mx.array(
        [
            [0.0, 1.0, 2.0],
            [0.0, nan, 2.0],
            [0.0, inf, 2.0],
            [-inf, -inf, -inf],
            [-inf, 5.0, -inf],
            [nan, nan, nan],
            [-inf, inf, 0.0],
            [-inf, -inf, 9.0],
        ]
    )
    drawn = draw(logits, [Draw(SamplingParams(**options), 0, 1, [0] * 8, 8)]).tolist()
    assert drawn[0] in (0, 1, 2)
    assert drawn[1:] == [-1, -1, -1, 1, -1, -1, 2]


def test_two_tokens_of_the_real_step_follow_the_models_law() -> None:
    """Real model, real noise, drafts that are mostly wrong: nine outcomes, enumerated."""
    model = build("llama", sharp=2.0)
    params = SamplingParams(temperature=1.6, top_k=3)
    prompt = (5, 6)

    def law_after(*ids: int) -> Any:
        logits = np.array(model(mx.array([ids])))[0, -1]
        return processed(logits, (), params)

    first = law_after(*prompt)
    likely = [int(t) for t in np.argsort(-first)[:3]]
    joint = {
        (a, int(b)): first[a] * p
        for a in likely
        for b, p in enumerate(law_after(*prompt, a))
        if p > 0
    }
    source = np.random.default_rng(0)
    slots, batches = 10, 40

    def guess(ids: tuple[int, ...], depth: int) -> list[int]:
        # The first draft is right by chance, the second nearly never.
        return [*source.choice(likely, 1).tolist(), *source.integers(0, VOCABULARY, depth)][:depth]

    drafter = GuessDrafter(lambda ids, depth: [int(t) for t in guess(ids, depth)])
    step = DecodeStep(Target(model), SlotCaches(model, slots), drafter)
    outcomes = []
    for batch in range(batches):
        rows = [
            make_row(
                prompt,
                number=i,
                max_tokens=3,
                depth=2,
                ignore_eos=True,
                temperature=1.6,
                top_k=3,
                seed=batch * slots + i,
            )
            for i in range(slots)
        ]
        run(step, rows)
        outcomes += [tuple(row.output[:2]) for row in rows]
    drafted, accepted = (sum(column) for column in zip(*drafter.observed, strict=True))
    assert 0.05 < accepted / drafted < 0.5
    assert set(outcomes) <= set(joint)
    counts = np.array([outcomes.count(key) for key in joint])
    assert p_value(counts, np.array(list(joint.values()))) > UNLIKELY
