"""What the concurrency benchmark computes, with answers that a person can check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gaps, loads, streams
from benchmarks.arrivals import Ask, Chain, Plan, burst, closed, lengths, poisson, shortened
from benchmarks.equality import Difference, SerialAnswers
from benchmarks.measure import BenchmarkFailed, EncodedPrompt
from benchmarks.served import PlanRun
from tests.benchmarks.served import ASKS, PROMPTS, served


def test_closed_loops_deal_requests_out_to_clients() -> None:
    plan = closed(ASKS[:5], 2)
    assert [[ask.prompt.name for ask in chain.asks] for chain in plan] == [
        ["p", "r", "t"],
        ["q", "s"],
    ]
    assert [chain.at for chain in plan] == [0.0, 0.0]


def test_poisson_arrivals_are_the_seed_s_and_scale_with_the_rate() -> None:
    # Python's generator gives 0.13436… and 0.84743… for seed 1.
    first, second = -math.log(1 - 0.13436424411240122), -math.log(1 - 0.8474337369372327)
    plan = poisson(ASKS, 1.0, seed=1)
    assert plan[0].at == pytest.approx(first)
    assert plan[1].at == pytest.approx(first + second)
    assert [chain.asks[0].prompt.name for chain in plan] == list("pqrstu")
    faster = poisson(ASKS, 4.0, seed=1)
    assert [4 * chain.at for chain in faster] == pytest.approx([chain.at for chain in plan])
    assert poisson(ASKS, 1.0, seed=1) == plan != poisson(ASKS, 1.0, seed=2)
    many = poisson(ASKS * 1000, 5.0, seed=3)
    assert many[-1].at == pytest.approx(6000 / 5.0, rel=0.05)


def test_bursts_come_together() -> None:
    # Three at a time at two a second: a burst every 1.5 seconds.
    assert [chain.at for chain in burst(ASKS, 3, 2.0)] == [0.0, 0.0, 0.0, 1.5, 1.5, 1.5]


def test_lengths_are_drawn_between_half_and_all() -> None:
    drawn = lengths(2000, 48, seed=5)
    assert (min(drawn), max(drawn)) == (24, 48)
    assert lengths(2000, 48, seed=5) == drawn != lengths(2000, 48, seed=6)
    assert set(lengths(50, 2, seed=1)) == {2}


def test_a_warm_up_is_the_first_request_of_each_chain_made_short() -> None:
    plan = (Chain(3.0, tuple(ASKS[:2])), Chain(5.0, (replace(ASKS[2], tokens=2),)))
    warm = shortened(plan, 3)
    assert [(c.at, c.asks[0].prompt.name, c.asks[0].tokens, len(c.asks)) for c in warm] == [
        (0.0, "p", 3, 1),
        (0.0, "r", 2, 1),
    ]


def encode(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def test_loads_are_what_their_names_say() -> None:
    chat, shared = (loads.LOADS[n].asks(encode, 40, 20, seed=1) for n in ("chat", "shared"))
    assert len({ask.prompt.ids for ask in chat}) == 40
    assert len({ask.prompt.domain for ask in chat[:6]}) == 6
    beginning = encode(loads.GARDEN)
    assert all(ask.prompt.ids[: len(beginning)] == beginning for ask in shared)
    assert len({ask.prompt.ids for ask in shared}) == len(loads.QUESTIONS) == 16
    longest = {
        n: max(a.tokens for a in loads.LOADS[n].asks(encode, 99, 20, 1)) for n in loads.LOADS
    }
    assert longest["chat"] == longest["poisson"] == longest["burst"] == longest["shared"] == 20
    assert 60 < longest["chat-long"] <= 80
    for name, starts in {"chat": 1, "burst": 2, "poisson": 4}.items():
        plan = loads.LOADS[name].plan(ASKS[:4], 2, rate=1.0, seed=1)
        assert len({chain.at for chain in plan}) == starts
        assert sorted(a.prompt.name for chain in plan for a in chain.asks) == list("pqrs")


def test_headline_works() -> None:
    samples = loads.many_samples(encode, 3, 9)
    assert [(a.seed, a.temperature, a.tokens) for a in samples] == [(n, 0.8, 9) for n in range(3)]
    assert len({a.prompt for a in samples}) == 1
    questions = loads.many_questions(encode, 3, 9)
    assert [(a.prompt.name, a.temperature) for a in questions] == [
        (f"garden-{n}", 0.0) for n in (1, 2, 3)
    ]


def test_long_prompts_share_no_beginning() -> None:
    prompts = loads.long_prompts(encode, 2000, 6)
    assert {len(p.ids) for p in prompts} == {2000}
    assert len({p.ids[0] for p in prompts}) == 6
    with pytest.raises(BenchmarkFailed, match="different long prompts, not 1000"):
        loads.long_prompts(encode, 2000, 1000)


def test_percentiles_are_values_that_came() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [streams.percentile(values, p) for p in (5, 25, 26, 50, 95, 100)] == [1, 1, 2, 2, 4, 4]
    assert streams.percentile(range(1, 101), 95) == 95
    assert streams.percentile([7.0], 50) == 7


def test_jain_of_known_rates() -> None:
    assert streams.jain([3.0, 3.0, 3.0]) == 1.0
    assert streams.jain([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert streams.jain([1.0, 3.0]) == 0.8  # 16 / (2 * 10)


def test_times_and_rates_of_a_request() -> None:
    one = served(3.0, 3.0, 4.0, 6.0, asked=1.0, cycles=(1, 1, 2, 3))
    assert (one.ttft_s, one.tpot_s, one.tok_s) == (2.0, 1.0, 0.8)
    assert one.blocks == (3.0, 4.0, 6.0)


def test_figures_of_known_rounds() -> None:
    quick, slow = served(1.0, 2.0, queued=0.5), served(2.0, 4.0, queued=1.5, cached_tokens=7)
    rounds = [
        PlanRun((quick, slow)),  # 4 tokens in 4 seconds; rates 1 and 0.5
        PlanRun((quick, quick)),  # 4 tokens in 2 seconds
        PlanRun((slow, slow)),
    ]
    found = streams.figures(rounds)
    assert found == {
        "rounds": 3,
        "requests": 2,
        "tokens": 4,
        "tok_s": 1.0,
        "tok_s_low": 1.0,
        "tok_s_high": 2.0,
        "stream_tok_s_p50": 0.5,
        "stream_tok_s_p95": 0.5,
        "ttft_s_p50": 1.0,
        "ttft_s_p95": 2.0,
        "tpot_s_p50": 1.0,
        "tpot_s_p95": 2.0,
        "queue_wait_s_p50": 0.5,
        "queue_wait_s_p95": 1.5,
        "jain": 1.0,  # of 0.9, 1 and 1
        "tokens_per_cycle": 1.0,
        "cached_tokens": 21,
    }
    assert streams.stream_rate(rounds[0]) == 0.75
    assert streams.joint_rate(rounds[:2]) == 8 / 6
    assert streams.figures(rounds[:1])["jain"] == 0.9  # 1.5^2 / (2 * 1.25)


def test_ratios_are_medians_of_the_rounds() -> None:
    rates = {"ar_batch": [2.0, 9.0, 3.0], "batchgen": [1.0, 3.0, 6.0]}
    pairs = [("ar_batch", "batchgen"), ("mtp_batch", "batchgen")]
    assert streams.ratios(rates, pairs, "4") == {"ar_batch_vs_batchgen@4": 2.0}  # of 2, 3 and 0.5
    assert streams.ratios(rates, pairs[:1], "") == {"ar_batch_vs_batchgen": 2.0}


def test_gaps_are_those_of_blocks_beside_the_newcomer() -> None:
    # Blocks at 1, 2, 6, 7; the newcomer is asked at 2.5 and has its first token at 6.5.
    stream = served(1.0, 2.0, 2.0, 6.0, 7.0, 9.0, cycles=(1, 2, 2, 3, 4, 5))
    together = PlanRun((stream, served(6.5, 6.6, asked=2.5)))
    found = gaps.gaps_of(PlanRun((served(0.0, 1.0, 3.0),)), together)
    assert found == gaps.Gaps(before=(1.0, 2.0), during=(4.0, 1.0))


def test_gap_rows_and_ratio() -> None:
    found = {"cooperative": [gaps.Gaps((0.1,), (0.2, 0.1)), gaps.Gaps((0.1,), (0.4, 0.1))]}
    (row,) = gaps.rows(found, 200)
    assert (row["gap_ms_p50"], row["gap_ms_p95"], row["gap_ms_max"]) == (100.0, 400.0, 400.0)
    assert (row["alone_ms_p50"], row["gaps"], row["rounds"]) == (100.0, 4, 2)
    # The rounds' own p95 are 200 and 400 ms.
    ratio = gaps.ratios(found, "cooperative", 200)
    assert ratio == {"cooperative_gap_p95_vs_target": pytest.approx(1.5)}
    assert gaps.ratios(found, "serial", 200) == {}


class Meeting:
    """A side whose stream takes a second a token, and a newcomer two seconds."""

    name = "fake"

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def serve(self, plan: Plan) -> PlanRun:
        stream = served(*(1.0 + n for n in range(plan[0].asks[0].tokens)), ask=plan[0].asks[0])
        if len(plan) == 1:
            return PlanRun((stream,))
        after = plan[1].after
        self.seen.append((plan[1].asks[0].prompt.name, after))
        return PlanRun((stream, served(after + 2.0, after + 3.0, asked=after)))


def test_no_newcomer_comes_twice() -> None:
    side = Meeting()
    found = gaps.measure([side], gaps.Meeting(replace(ASKS[0], tokens=8), tuple(PROMPTS[1:4])))
    assert side.seen == [("q", 2), ("r", 2), ("s", 2)]  # a quarter of 8 tokens
    # The second token came at 2, the newcomer's first at 4.
    assert [g.during for g in found["fake"]] == [(1.0, 1.0)] * 2


class Answering:
    """An engine that counts up from the prompt's last id to 7, and finds id 5 the likeliest."""

    facts = SimpleNamespace(precision="float32", device="cpu", family="llama", vocabulary=8)

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], dict[str, Any]]] = []
        self.inspected: list[list[int]] = []

    def status(self) -> dict[str, Any]:
        return {"blas": {"kind": "openblas"}}

    def configure(self, **settings: Any) -> None:
        assert settings == {"scheduler": "serial"}

    def generate(self, ids: list[int], **options: Any) -> Any:
        self.asked.append((ids, options))
        found = range(ids[-1] + 1, ids[-1] + 1 + options["max_tokens"])
        ends = not options.get("ignore_eos", False)
        return SimpleNamespace(token_ids=tuple(n for n in found if n < 8 or not ends))

    def inspect(self, ids: Sequence[int], top: int) -> list[tuple[int, float]]:
        self.inspected.append(list(ids))
        return [(5, -0.5), *((n, -2.0 - n) for n in range(top) if n != 5)]


def test_answers_are_compared_with_the_longest_serial_ones() -> None:
    engine = Answering()
    answers = SerialAnswers(engine)  # type: ignore[arg-type]
    prompt = EncodedPrompt("p", "chat", (1, 3))
    short, long = Ask(prompt, 2), Ask(prompt, 4)
    assert answers.fitted([short, long, short]) == [short, long, short]
    assert answers.fitted([long]) == [long]
    ((ids, options),) = engine.asked
    assert (ids, options["max_tokens"], options["mode"]) == ([1, 3], 4, "ar")
    assert options["prefix_cache"] is False
    right = served(1.0, 2.0, ask=short, ids=(4, 5))
    wrong = served(1.0, 2.0, 3.0, 4.0, ask=long, ids=(4, 2, 6, 7))
    assert answers.differences([PlanRun((right,))]) == []
    found = answers.differences([PlanRun((right, wrong)), PlanRun((wrong,))])
    # Serial goes on with 5 (-0.5), this answer with 2 (-4).
    assert found == [Difference("p", times=2, at=1, margin=3.5)]
    assert engine.inspected == [[1, 3, 4]]
    assert answers.tolerance == 2e-3


def test_answers_are_no_longer_than_the_model_makes_them() -> None:
    engine = Answering()
    answers = SerialAnswers(engine)  # type: ignore[arg-type]
    natural, brief = EncodedPrompt("p", "chat", (-3,)), EncodedPrompt("q", "chat", (5,))
    asks = [Ask(natural, 12), Ask(natural, 9), Ask(brief, 12), Ask(brief, 6)]
    # Ten ids up to 7; two of the other prompt, which goes on to eight.
    assert [ask.tokens for ask in answers.fitted(asks)] == [10, 9, 8, 6]
    assert [o.get("ignore_eos", False) for _, o in engine.asked] == [False, False, True]
    answers.fitted(asks)
    assert len(engine.asked) == 3


def test_margins_of_samples_count_the_noise() -> None:
    from mtplx_kernel.decoding.sampling import noise

    engine = Answering()
    answers = SerialAnswers(engine)  # type: ignore[arg-type]
    ask = Ask(EncodedPrompt("p", "chat", (1, 3)), 2, temperature=0.8, seed=9)
    answers.fitted([ask])
    (found,) = answers.differences([PlanRun((served(1.0, 2.0, ask=ask, ids=(4, 2)),))])
    drawn = noise(9, 3, 8).tolist()
    scores = [p + 0.8 * drawn[n] for n, p in sorted(engine.inspect([], 8))]
    assert found.margin == pytest.approx(max(scores) - min(scores[5], scores[2]))
    assert engine.asked[0][1]["seed"] == 9
