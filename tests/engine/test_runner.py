"""The runner without its thread, on a clock that ticks once a look: times and counts are exact."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.engine.request import FinishReason, Handle, Request
from mtplx_kernel.engine.runner import Runner
from mtplx_kernel.engine.stats import GenerationStats
from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.models.load import LoadedModel, load
from mtplx_kernel.scheduling.policy import Machine, Ran
from mtplx_kernel.scheduling.relay import Relay
from mtplx_kernel.scheduling.serial import SerialPolicy
from tests.engine.conftest import PROBE


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load(tiny_folder, "tiny")


@pytest.fixture
def runner(loaded: LoadedModel) -> Runner:
    ticks = itertools.count(100.0)
    made = Runner(loaded, "serial", {}, Timeline(), clock=lambda: next(ticks))
    made.modes.machine = Machine(chunk=2)
    made.modes.relay = Relay(SerialPolicy(made.modes.machine))
    return made


def ran(runner: Runner) -> bool:
    """Run a quantum; whether there was one."""
    pause = runner.run_next()
    assert pause in (0.0, math.inf)
    return pause == 0.0


def handle(name: str, prompt: list[int], **options: Any) -> Handle:
    params = SamplingParams.of(options)
    request = Request(
        request_id=name,
        prompt_ids=tuple(prompt),
        params=params,
        seed=params.seed or 0,
        mode=params.mode or GenerationMode.AR,
    )
    return Handle(request, DecodeWindow(name, 99.0, prompt_tokens=len(prompt)))


def test_a_prompt_is_fed_in_chunks_but_for_its_last_token(runner: Runner) -> None:
    asked = handle("a", PROBE, max_tokens=2)
    runner.submit(asked)
    row = runner.jobs["a"].row
    committed = []
    while ran(runner):
        committed.append(row.committed)
    assert committed[:2] == [2, 4]
    assert len(committed) == 4  # two chunks, two cycles
    assert asked.result().finish_reason is FinishReason.LENGTH
    assert len(runner.jobs) == 0
    snapshot = runner.modes.snapshot()
    assert snapshot["mode"] == "serial"
    assert snapshot["serial"] == {
        "open_requests": 0,
        "ended_requests": 1,
        "row_verifies": 2,
        "accepted_drafts": 0,
        "rejected_drafts": 0,
        "last_error": None,
    }


def test_a_policy_learns_what_was_fed_and_not_what_the_prefix_cache_held(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[dict[str, int], dict[str, int]]] = []
    learn = SerialPolicy.ran

    def ran_too(policy: SerialPolicy, quantum: Any, ran: Ran, now: float) -> None:
        told.append((dict(ran.fed), dict(ran.tokens)))
        learn(policy, quantum, ran, now)

    monkeypatch.setattr(SerialPolicy, "ran", ran_too)
    runner = Runner(loaded, "serial", {}, Timeline(), prefix_mb=1)
    prompt = [3, 5, 8, 13, 21, 34, 55, 89, 144, 2]
    for name, ids in (("a", prompt), ("b", [*prompt[:9], 4, 6, 7])):
        runner.submit(handle(name, ids, max_tokens=1))
        while ran(runner):
            pass
    # Of the second prompt's 11 tokens before the last, 9 were there.
    assert [fed for fed, tokens in told if not tokens] == [{"a": 9}, {"b": 2}]
    assert [tokens for fed, tokens in told if not fed] == [{"a": 1}, {"b": 1}]


def test_times_come_from_the_clock_and_make_the_stats(runner: Runner) -> None:
    asked = handle("a", [1, 2, 3], max_tokens=3)
    runner.submit(asked)
    while ran(runner):
        pass
    w, stats = asked.window, asked.result().stats
    assert w.admitted == w.prefill_started
    assert w.admitted is not None
    assert w.first_token is not None
    assert w.ended is not None
    assert all(t == int(t) for t in (w.admitted, w.first_token, w.ended))
    assert 99.0 < w.admitted < w.first_token < w.ended
    assert stats.queue_wait_s == w.admitted - 99.0
    assert stats.prefill_s == w.first_token - w.admitted
    assert stats.ttft_s == w.first_token - 99.0
    assert stats.decode_elapsed_s == w.ended - w.first_token
    assert stats.decode_tok_s == 2 / (w.ended - w.first_token)
    assert stats.end_to_end_tok_s == 3 / (w.ended - 99.0)


def test_requests_run_one_after_the_other(runner: Runner) -> None:
    first, second = handle("a", PROBE, max_tokens=3), handle("b", PROBE, max_tokens=3)
    runner.submit(first)
    runner.submit(second)
    while not first.done:
        assert ran(runner)
        assert second.window.admitted is None
    while ran(runner):
        pass
    assert first.result().token_ids == second.result().token_ids


def test_a_cancel_between_quanta(runner: Runner) -> None:
    first, second = handle("a", PROBE, max_tokens=9), handle("b", PROBE, max_tokens=2)
    runner.submit(first)
    runner.submit(second)
    for _ in range(4):
        runner.run_next()
    runner.cancel(first)  # nobody asked for it: the handle gives no reason
    assert not first.done
    first.cancel()
    runner.cancel(first)
    runner.cancel(first)
    assert first.result().finish_reason is FinishReason.CANCELLED
    assert len(first.result().token_ids) == 2
    while ran(runner):
        pass
    assert second.result().token_ids == first.result().token_ids


def test_a_cancel_of_a_request_that_was_never_posted(runner: Runner) -> None:
    asked = handle("a", PROBE, max_tokens=9)
    runner.cancel(asked)
    assert not asked.done
    asked.cancel(FinishReason.INTERRUPTED)
    runner.cancel(asked)
    assert (asked.result().finish_reason, asked.result().token_ids) == ("interrupted", ())
    assert len(runner.jobs) == 0
    assert not ran(runner)


def test_memory_is_that_of_the_weights_and_the_caches(runner: Runner) -> None:
    assert runner.weights_bytes == 4 * 181_312
    first = runner.caches_bytes
    tokens = 4 * 2 * 2 * 16 * 4  # bytes of one: layers, keys and values, heads, width, float32
    asked = handle("a", [1] * 1_000, max_tokens=2)
    runner.submit(asked)
    while not asked.window.completion_tokens:
        runner.run_next()
    assert runner.caches_bytes > first
    assert runner.caches_bytes % tokens == 0
    assert 1_000 * tokens <= runner.caches_bytes <= 2_100 * tokens
    runner.end_all(FinishReason.CANCELLED)


def test_the_end_of_all(runner: Runner) -> None:
    handles = [handle(name, PROBE, max_tokens=9) for name in "abc"]
    for each in handles:
        runner.submit(each)
    for _ in range(3):
        runner.run_next()
    runner.end_all(FinishReason.CANCELLED)
    assert [len(h.result().token_ids) for h in handles] == [1, 0, 0]
    assert [h.result().finish_reason for h in handles] == ["cancelled"] * 3
    assert not ran(runner)


def test_cycles_are_counted_by_depth() -> None:
    window = DecodeWindow("a", 0.0)
    for drafted, accepted in ((0, 0), (3, 2), (1, 0), (2, 2)):
        window.record_cycle(drafted, accepted)
    assert window.verify_calls == 4
    assert window.drafted_by_depth == [3, 2, 1]
    assert window.accepted_by_depth == [2, 2, 0]


def test_stats_of_a_request_that_never_ran() -> None:
    asked = handle("a", PROBE, max_tokens=2)
    asked.window.ended = 104.0
    found = GenerationStats.of(asked.window, 0).as_dict()
    assert found == {
        "scheduler_mode": "serial",
        "scheduler_policy": "fifo",
        "generation_mode": "ar",
        "prompt_tokens": 5,
        "completion_tokens": 0,
        "seed": 0,
    }
