"""The sampler of the rules `rejection` and `block`: real noise against the laws, and its edges."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from mtplx_kernel.decoding import acceptance
from mtplx_kernel.decoding.acceptance import BLOCK, REJECTION, chances, draft_noise, verify
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.decoding.sampling import Draw, adjusted, draw, noise, shaped
from tests.decoding.test_sampling import LAWS, SIZE, TOKENS, p_value, processed, random_logits
from tests.decoding.toy import Context, shares

RULES = (REJECTION, BLOCK)
UNLIKELY = 1e-4
"""A p-value below this is a wrong law; the seeds are fixed, so the outcome never changes."""
NAN, INF = float("nan"), float("inf")
VOCABULARY, LENGTH, DEPTH = 3, 3, 2
PROMPT: Context = (1, 1)
KNOWN = (2, 0)
"""The ids that the toy's drafter knows."""


def p_after(context: Context) -> Any:
    return (shares(("target", context), VOCABULARY) + 0.2) / 1.6


def q_after(context: Context) -> Any:
    return shares(("drafter", context), len(KNOWN))


def logs(values: list[Any], width: int) -> mx.array:
    with np.errstate(divide="ignore"):
        return mx.array(np.log(np.array(values).reshape(-1, width)).astype(np.float32))


def one_cycle(rule: str, outputs: list[Context]) -> list[Context]:
    """Draft, judge and lengthen each output that is not long enough; its place is its seed."""
    going = [seed for seed, output in enumerate(outputs) if len(output) < LENGTH]
    drafts: dict[int, Context] = dict.fromkeys(going, ())
    for offset in range(DEPTH):
        drafting = [seed for seed in going if len(outputs[seed]) + offset + 1 < LENGTH]
        chosen = []
        for seed in drafting:
            text = PROMPT + outputs[seed]
            gumbel = draft_noise(seed, len(text), offset, len(KNOWN))
            chosen.append(mx.argmax(logs([q_after(text + drafts[seed])], len(KNOWN))[0] + gumbel))
        for seed, column in zip(
            drafting, np.array(mx.stack(chosen or [mx.array(0)])), strict=False
        ):
            drafts[seed] += (KNOWN[column],)
    verdicts: list[mx.array] = []
    for seed in going:
        text, ids = PROMPT + outputs[seed], drafts[seed]
        befores = [text + ids[:i] for i in range(len(ids) + 1)]
        verdicts += verify(
            rule,
            logs([p_after(b) for b in befores], VOCABULARY),
            mx.array(ids, dtype=mx.int32),
            logs([q_after(b) for b in befores[:-1]], len(KNOWN)),
            mx.array(KNOWN),
            seed,
            len(text),
        )
    found = np.array(mx.stack(verdicts)).reshape(-1, 2).tolist()
    longer = list(outputs)
    for seed, (accepted, token) in zip(going, found, strict=True):
        longer[seed] = (*outputs[seed], *drafts[seed][:accepted], token)
    return longer


def fit(rule: str, seeds: int) -> float:
    """How well the outputs of many seeds, over several cycles each, fit the target's law."""
    outputs: list[Context] = [()] * seeds
    for _ in range(LENGTH):
        outputs = one_cycle(rule, outputs)
    assert {len(output) for output in outputs} == {LENGTH}
    counts, law = Counter(outputs), {}
    for output in product(range(VOCABULARY), repeat=LENGTH):
        law[output] = np.prod([p_after(PROMPT + output[:i])[t] for i, t in enumerate(output)])
    return p_value(np.array([counts[o] for o in law]), np.array(list(law.values())))


@pytest.mark.parametrize("rule", RULES)
def test_the_sampler_follows_the_targets_law(rule: str) -> None:
    assert fit(rule, 1500) > UNLIKELY


@pytest.mark.parametrize("rule", RULES)
def test_one_noise_for_all_purposes_is_caught(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Drafts drawn with the noise of the test and the correction."""
    real = acceptance._key

    def key(purpose: bytes, seed: int, position: int, offset: int = 0) -> mx.array:
        return real(b"all", seed, position, offset)

    monkeypatch.setattr(acceptance, "_key", key)
    assert fit(rule, 500) < UNLIKELY


@pytest.mark.parametrize("name", ["all", "bias", "penalties"])
@pytest.mark.parametrize("rule", RULES)
def test_filters_and_penalties_are_the_targets(rule: str, name: str) -> None:
    """Rows come processed position by position; what comes out follows the processed law."""
    params = SamplingParams(**LAWS[name])
    logits, start = random_logits(2), len(TOKENS)
    q = shaped(mx.array(logits[:1] + random_logits(1, seed=9, scale=0.5)), params)
    drafts: Any = mx.stack(
        [mx.argmax(q[0] + draft_noise(seed, start, 0, SIZE)) for seed in range(1000)]
    ).tolist()
    rows = {
        x: shaped(adjusted(mx.array(logits), Draw(params, 0, start, (*TOKENS, x), 2)), params)
        for x in set(drafts)
    }
    verdicts = [
        mx.stack([*verify(rule, rows[x], mx.array([x], dtype=mx.int32), q, None, seed, start)])
        for seed, x in enumerate(drafts)
    ]
    found: Any = mx.stack(verdicts).tolist()
    first = [x if accepted else token for x, (accepted, token) in zip(drafts, found, strict=True)]
    law = processed(logits[0], TOKENS, params)
    assert p_value(np.bincount(first, minlength=SIZE), law) > UNLIKELY
    common = Counter(first).most_common(1)[0][0]
    second = [t for x, (accepted, t) in zip(drafts, found, strict=True) if accepted and x == common]
    assert len(second) > 100
    law = processed(logits[1], (*TOKENS, common), params)
    assert p_value(np.bincount(second, minlength=SIZE), law) > UNLIKELY


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("rule", RULES)
def test_without_drafts_it_is_the_draw_of_coupled_sampling(rule: str, name: str) -> None:
    params = SamplingParams(**LAWS[name])
    logits = mx.array(random_logits(1))
    nothing = mx.zeros((0,), dtype=mx.int32)
    for seed in range(20):
        d = Draw(params, seed, len(TOKENS), TOKENS, 1)
        rows = shaped(adjusted(logits, d), params)
        accepted, token = verify(rule, rows, nothing, None, None, seed, len(TOKENS))
        assert (accepted.item(), token.item()) == (0, draw(logits, [d]).item())


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_evaluated_inside(rule: str, certain: bool) -> None:
    """A function that evaluates cannot be traced."""
    target, q = mx.array(random_logits(4)), mx.array(random_logits(3, size=5, seed=1))
    ids, columns = mx.array([4, 2, 9], dtype=mx.int32), mx.array([9, 4, 2, 0, 7])

    def judge(target: mx.array, ids: mx.array, q: mx.array) -> tuple[mx.array, mx.array]:
        if certain:
            return verify(rule, target, ids, None, None, 5, 6)
        return verify(rule, target, ids, q, columns, 5, 6)

    found = mx.compile(judge)(target, ids, q)  # traced only: its result is not asked for
    assert [(a.dtype, a.shape) for a in found] == [(mx.int32, ())] * 2
    with pytest.raises(ValueError, match="eval"):
        mx.compile(lambda *inputs: [a.item() for a in judge(*inputs)])(target, ids, q)


@pytest.mark.parametrize("rule", RULES)
def test_what_the_target_gives_alike_is_always_kept_and_never_what_it_rules_out(rule: str) -> None:
    logits = mx.array(random_logits(4, seed=3))
    ids = mx.array([3, 1, 4], dtype=mx.int32)
    out = mx.array(logits)
    out[0, 3] = -INF
    for seed in range(100):
        assert verify(rule, logits, ids, logits[:3], None, seed, 9)[0].item() == 3
        accepted, token = verify(rule, out, ids, logits[:3], None, seed, 9)
        assert accepted.item() == 0
        assert token.item() != 3


@pytest.mark.parametrize("rule", RULES)
def test_rows_need_not_be_normalised_and_columns_are_only_a_short_form(rule: str) -> None:
    target, q = mx.array(random_logits(3)), mx.array(random_logits(2, size=3, seed=1))
    columns = mx.array([8, 1, 5])
    wide = mx.full((2, SIZE), -INF)
    wide[:, columns] = q
    ids = mx.array([5, 8], dtype=mx.int32)
    for seed in range(50):
        plain = verify(rule, target, ids, q, columns, seed, 9)
        for other in (
            verify(rule, target + 7.0, ids, q - 5.0, columns, seed, 9),
            verify(rule, target, ids, wide, None, seed, 9),
        ):
            assert [a.item() for a in other] == [a.item() for a in plain]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [[NAN] * 3, [-INF] * 3, [1.0, NAN, 0.0], [0.0, 2.0, -INF]], ids=str)
def test_a_draft_that_its_q_does_not_explain_counts_as_certain(rule: str, bad: list[float]) -> None:
    """A head that fails costs speed only: such a draft was not drawn from anything."""
    ids = mx.array([1, 2], dtype=mx.int32)
    p = mx.softmax(mx.array(random_logits(3, size=3)), axis=-1)
    q = mx.softmax(mx.array([[0.3, 1.0, 0.2], bad]), axis=-1)
    law = chances(rule, p, ids, q, None)
    repaired = chances(rule, p, ids, mx.stack([q[0], mx.array([0.0, 0.0, 1.0])]), None)
    assert law.tests.tolist() == repaired.tests.tolist()
    assert law.draft.tolist() == repaired.draft.tolist()


@pytest.mark.parametrize("drafts", [0, 1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 2}, {"presence_penalty": 1.0}],
    ids=str,
)
@pytest.mark.parametrize("rule", RULES)
def test_logits_without_a_distribution_give_minus_one(
    rule: str, options: dict[str, Any], drafts: int
) -> None:
    params = SamplingParams(temperature=0.8, **options)
    good = [0.5, 1.0, 2.0]
    q = mx.zeros((drafts, 3))
    ids = mx.array([1, 2][:drafts], dtype=mx.int32)
    for bad in ([0.0, NAN, 2.0], [0.0, INF, 2.0], [-INF] * 3, [NAN] * 3, [-INF, INF, 0.0]):
        for place in range(drafts + 1):
            rows = [good] * (drafts + 1)
            rows[place] = bad
            found = verify(rule, shaped(mx.array(rows), params), ids, q, None, 0, 1)
            assert [a.item() for a in found] == [0, -1]
    fine = verify(rule, shaped(mx.array([good] * (drafts + 1)), params), ids, q, None, 0, 1)
    assert fine[0].item() in range(drafts + 1)
    assert fine[1].item() in range(3)


@pytest.mark.parametrize("temperature", [1e-6, 1e-20, 1e-40, 5e-324])
@pytest.mark.parametrize("rule", RULES)
def test_the_coldest_temperatures_are_greedy(rule: str, temperature: float) -> None:
    logits = mx.array(random_logits(3, size=50, seed=6))
    best: Any = mx.argmax(logits, axis=-1).tolist()
    rows = shaped(logits, SamplingParams(temperature=temperature))
    q = mx.zeros((2, 50))
    for ids, expected in (
        (best[:2], [2, best[2]]),
        ([best[0], best[1] ^ 1], [1, best[1]]),
        ([best[0] ^ 1, best[1]], [0, best[0]]),
    ):
        found = verify(rule, rows, mx.array(ids, dtype=mx.int32), q, None, 1, 2)
        assert [a.item() for a in found] == expected


def test_another_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="'rejection' or 'block', not 'typical'"):
        verify("typical", mx.zeros((1, 3)), mx.zeros((0,), dtype=mx.int32), None, None, 0, 0)


def test_noise_of_drafts_depends_on_all_and_is_not_the_targets() -> None:
    keys = [(7, 11, 0), (7, 11, 1), (7, 12, 0), (8, 11, 0), (11, 7, 0), (7 + 2**32, 11, 0)]
    values = [draft_noise(*key, 50) for key in keys]
    assert mx.array_equal(values[0], draft_noise(7, 11, 0, 50))
    others = [*values, noise(7, 11, 50), noise(7, 12, 50)]
    others += [mx.random.gumbel((50,), key=acceptance._key(b"token", 7, 11))]
    for i, one in enumerate(others):
        assert not any(mx.any(one == other).item() for other in others[:i])


def test_noise_of_drafts_is_gumbels_and_global_state_stays() -> None:
    mx.random.seed(1)
    state: Any = mx.random.state
    before = [a.tolist() for a in state]
    values = np.concatenate([np.array(draft_noise(s, 0, s, 2000)) for s in range(5)])
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > UNLIKELY
    mx.eval(verify(BLOCK, mx.zeros((2, 3)), mx.array([1]), mx.zeros((1, 3)), None, 2**64 - 1, 0))
    assert [a.tolist() for a in state] == before
