"""What /metrics says, against values computed by hand and against what the requests report."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.errors import EngineClosed
from mtplx_kernel.server.metrics import Metrics
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S, Gate
from tests.tiny import write

LIKE = [65] * 40
"""A text that repeats itself, so that some drafts are right."""


def window(**fields: Any) -> DecodeWindow:
    """A request that came at 0 s, began at 1, said its first token at 2 and ended at 6."""
    return DecodeWindow(**{**ENDED, **fields})


ENDED: dict[str, Any] = {
    "request_id": "req-1",
    "submitted": 0.0,
    "admitted": 1.0,
    "first_token": 2.0,
    "ended": 6.0,
    "finish_reason": "stop",
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "cached_tokens": 3,
    "verify_calls": 3,
    "drafted_by_depth": [2, 1],
    "accepted_by_depth": [1, 0],
}
RUNNING: dict[str, Any] = {"ended": None, "finish_reason": None}


def engine_of(timeline: Timeline, name: str = "tiny", closed: bool = False) -> Any:
    status = {"running": 1, "queue": {"waiting": 4}, "memory_bytes": 1234}
    return SimpleNamespace(name=name, timeline=timeline, closed=closed, status=lambda: status)


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name and labels; the model's label is left out where it is tiny."""
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    pairs = [line.replace('model_name="tiny",', "").rpartition(" ") for line in lines]
    return {name.replace('{model_name="tiny"}', ""): float(value) for name, _, value in pairs}


def changed(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name)}


def test_one_request_by_hand() -> None:
    timeline = Timeline()
    timeline.open(window())
    found = values(Metrics(lambda: engine_of(timeline)))
    expected = {
        "vllm:prompt_tokens_total": 7,
        "vllm:generation_tokens_total": 5,
        'vllm:request_success_total{finished_reason="stop"}': 1,
        'vllm:request_success_total{finished_reason="length"}': 0,
        "vllm:prefix_cache_queries_total": 7,
        "vllm:prefix_cache_hits_total": 3,
        "vllm:spec_decode_num_drafts_total": 2,
        "vllm:spec_decode_num_draft_tokens_total": 3,
        "vllm:spec_decode_num_accepted_tokens_total": 1,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 1,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 0,
        "vllm:request_queue_time_seconds_sum": 1,
        "vllm:time_to_first_token_seconds_sum": 2,
        "vllm:time_to_first_token_seconds_count": 1,
        'vllm:time_to_first_token_seconds_bucket{le="1"}': 0,
        'vllm:time_to_first_token_seconds_bucket{le="2.5"}': 1,
        "vllm:request_time_per_output_token_seconds_sum": 1,  # 4 s for the 4 after the first
        "vllm:e2e_request_latency_seconds_sum": 6,
        "vllm:num_requests_running": 1,
        "vllm:num_requests_waiting": 4,
        "mtplx_memory_bytes": 1234,
        "mtplx_engine_ready": 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_looking_again_counts_nothing_twice() -> None:
    timeline = Timeline()
    metrics = Metrics(lambda: engine_of(timeline))
    timeline.open(window())
    first = values(metrics)
    assert values(metrics) == first
    timeline.open(window())
    after = changed(first, values(metrics))
    assert after["vllm:prompt_tokens_total"] == 7
    assert after['vllm:request_success_total{finished_reason="stop"}'] == 1


def test_a_running_request_is_counted_as_it_grows() -> None:
    growing = window(**RUNNING, completion_tokens=0, drafted_by_depth=[], accepted_by_depth=[])
    growing.first_token = None
    timeline = Timeline()
    timeline.open(growing)
    metrics = Metrics(lambda: engine_of(timeline))
    waiting = values(metrics)
    assert waiting["vllm:request_queue_time_seconds_count"] == 1
    assert waiting["vllm:time_to_first_token_seconds_count"] == 0
    assert waiting["vllm:prompt_tokens_total"] == 0
    growing.first_token, growing.completion_tokens = 2.0, 3
    growing.record_cycle(2, 2)
    begun = values(metrics)
    assert (begun["vllm:prompt_tokens_total"], begun["vllm:generation_tokens_total"]) == (7, 3)
    assert begun["vllm:time_to_first_token_seconds_count"] == 1
    growing.completion_tokens = 5
    growing.record_cycle(1, 0)
    growing.ended, growing.finish_reason = 6.0, "length"
    after = changed(begun, values(metrics))
    assert {name: n for name, n in after.items() if name.endswith("_total")} == {
        "vllm:generation_tokens_total": 2,
        "vllm:spec_decode_num_drafts_total": 1,
        "vllm:spec_decode_num_draft_tokens_total": 1,
    }
    assert after['vllm:request_success_total{finished_reason="length"}'] == 1
    assert "vllm:time_to_first_token_seconds_count" not in after


@pytest.mark.parametrize(
    ("reason", "label"),
    [("cancelled", "abort"), ("interrupted", "abort"), ("error", "error"), ("length", "length")],
)
def test_ends_have_vllms_names(reason: str, label: str) -> None:
    timeline = Timeline()
    timeline.open(window(finish_reason=reason))
    found = values(Metrics(lambda: engine_of(timeline)))
    ends = {name: n for name, n in found.items() if "request_success" in name and n}
    assert ends == {f'vllm:request_success_total{{finished_reason="{label}"}}': 1}


def test_what_does_not_apply_is_not_timed() -> None:
    timeline = Timeline()
    timeline.open(window(completion_tokens=1))  # no token after the first
    timeline.open(window(first_token=None, admitted=None, completion_tokens=0))  # never run
    found = values(Metrics(lambda: engine_of(timeline)))
    assert found["vllm:request_time_per_output_token_seconds_count"] == 0
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:request_queue_time_seconds_count"] == 1
    assert found["vllm:e2e_request_latency_seconds_count"] == 2


def test_a_request_that_the_timeline_forgets_is_followed_to_its_end() -> None:
    timeline, long = Timeline(capacity=1), window(**RUNNING)
    metrics = Metrics(lambda: engine_of(timeline))
    timeline.open(long)
    values(metrics)
    timeline.open(window())
    before = values(metrics)
    long.completion_tokens, long.ended, long.finish_reason = 50, 60.0, "length"
    after = changed(before, values(metrics))
    assert after["vllm:generation_tokens_total"] == 45
    assert after['vllm:request_success_total{finished_reason="length"}'] == 1


def test_models_are_counted_apart_and_go_on_when_they_come_back() -> None:
    timelines = [Timeline(), Timeline(), Timeline()]
    names = ["tiny", "other", "tiny"]
    engines = [engine_of(t, name) for t, name in zip(timelines, names, strict=True)]
    current: list[Any] = [engines[0]]
    metrics = Metrics(lambda: current[0])
    last = window(**RUNNING)
    timelines[0].open(last)
    values(metrics)
    current[0] = engines[1]
    timelines[1].open(window(prompt_tokens=100))
    found = values(metrics)
    assert found["vllm:prompt_tokens_total"] == 7
    assert found['vllm:prompt_tokens_total{model_name="other"}'] == 100
    last.completion_tokens, last.ended, last.finish_reason = 9, 10.0, "stop"
    assert values(metrics)["vllm:generation_tokens_total"] == 9, "the old engine finished it"
    current[0] = engines[2]
    timelines[2].open(window())
    assert values(metrics)["vllm:prompt_tokens_total"] == 14


def test_the_same_engine_is_not_counted_again_when_it_comes_back() -> None:
    timelines = [Timeline(), Timeline()]
    engines = [engine_of(t, name) for t, name in zip(timelines, ["tiny", "other"], strict=True)]
    current: list[Any] = [engines[0]]
    metrics = Metrics(lambda: current[0])
    for timeline in timelines:
        timeline.open(window())
    for turn in (0, 1, 0, 1, 0):
        current[0] = engines[turn]
        found = values(metrics)
        assert found["vllm:prompt_tokens_total"] == 7
    timelines[0].open(window())
    assert values(metrics)["vllm:prompt_tokens_total"] == 14
    assert found['vllm:prompt_tokens_total{model_name="other"}'] == 7


def test_an_engine_that_was_replaced_is_let_go() -> None:
    timelines = [Timeline(), Timeline()]
    current: list[Any] = [engine_of(timelines[0])]
    metrics, last = Metrics(lambda: current[0]), window(**RUNNING)
    timelines[0].open(last)
    values(metrics)
    gone = weakref.ref(timelines[0])
    current[0] = engine_of(timelines.pop())
    timelines.clear()
    values(metrics)
    gc.collect()
    assert gone() is not None, "it has a request to finish"
    last.ended, last.finish_reason = 10.0, "stop"
    values(metrics)
    gc.collect()
    assert gone() is None


def test_without_an_engine_the_counts_stay() -> None:
    timeline = Timeline()
    loaded: list[Any] = [engine_of(timeline)]

    def engines() -> Any:
        if not loaded:
            raise EngineClosed("no model is loaded")
        return loaded[0]

    metrics = Metrics(engines)
    timeline.open(window())
    values(metrics)
    engine = loaded.pop()
    found = values(metrics)
    assert found["vllm:prompt_tokens_total"] == 7
    assert found["mtplx_engine_ready"] == 0
    assert "vllm:num_requests_running" not in found
    loaded.append(engine)
    assert values(metrics)["vllm:prompt_tokens_total"] == 7, "the same engine again"
    loaded[0] = engine_of(timeline, closed=True)
    assert values(metrics)["mtplx_engine_ready"] == 0


def test_each_family_is_told_once() -> None:
    timeline = Timeline()
    timeline.open(window())
    text = Metrics(lambda: engine_of(timeline)).text()
    types = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len({name for name, _ in types}) == len(types) == 17
    assert {kind for _, kind in types} == {"counter", "gauge", "histogram"}
    assert all(name.endswith("_total") for name, kind in types if kind == "counter")
    assert text.endswith("\n")


def test_requests_to_an_engine_add_up(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"max_tokens": 60, "depth": 3, "ignore_eos": True}
    with mk.load(str(write("llama", tmp_path / "tiny")), mode="mtp") as engine:
        metrics = Metrics(lambda: engine)
        said = [engine.generate(prompt, **asked) for prompt in (PROBE, LIKE, LIKE)]
        ended = values(metrics)
        gate = Gate()
        running = engine.submit(PROBE, max_tokens=2, on_token=gate, ignore_eos=True)
        waiting = engine.submit(PROBE, max_tokens=2, ignore_eos=True)
        gate.await_reached()
        busy = values(metrics)
        gate.open()
        for handle in (running, waiting):
            handle.result(PATIENCE_S)
        idle = values(metrics)
    stats = [generation.stats for generation in said]
    assert ended["vllm:prompt_tokens_total"] == 5 + 40 + 40
    assert ended["vllm:generation_tokens_total"] == 3 * 60
    assert ended['vllm:request_success_total{finished_reason="length"}'] == 3
    assert ended["vllm:prefix_cache_queries_total"] == 5 + 40 + 40
    assert ended["vllm:prefix_cache_hits_total"] == sum(s.cached_tokens or 0 for s in stats) > 0
    drafted = sum(sum(s.drafted_by_depth or ()) for s in stats)
    accepted = sum(sum(s.accepted_by_depth or ()) for s in stats)
    assert ended["vllm:spec_decode_num_draft_tokens_total"] == drafted > 0
    assert ended["vllm:spec_decode_num_accepted_tokens_total"] == accepted > 0
    # Every verify gives one token, and every accepted draft one more.
    assert sum(s.verify_calls or 0 for s in stats) + accepted == 3 * 60
    for name, per_request in (
        ("time_to_first_token", [s.ttft_s or 0 for s in stats]),
        ("request_queue_time", [s.queue_wait_s or 0 for s in stats]),
        ("request_time_per_output_token", [(s.decode_elapsed_s or 0) / 59 for s in stats]),
    ):
        assert ended[f"vllm:{name}_seconds_count"] == 3
        assert ended[f"vllm:{name}_seconds_sum"] == pytest.approx(sum(per_request))
    assert (busy["vllm:num_requests_running"], busy["vllm:num_requests_waiting"]) == (1, 1)
    assert (idle["vllm:num_requests_running"], idle["vllm:num_requests_waiting"]) == (0, 0)
    assert busy["vllm:prompt_tokens_total"] == 5 + 40 + 40 + 5, "of the one that waits nothing"
    assert idle["vllm:prompt_tokens_total"] == 5 + 40 + 40 + 5 + 5
    assert idle["vllm:generation_tokens_total"] == 3 * 60 + 2 + 2
    assert idle["vllm:time_to_first_token_seconds_count"] == 5
