"""Jobs of a batching program: futures, hooks and limits over the engine's cohorts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.caching.prefix import PrefixCache
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.mtp_batch import (
    GenerationLimits,
    MTPBatchGenerationService,
    MTPBatchJob,
    MTPBatchRequest,
)
from mtplx_kernel.engine.request import Generation
from mtplx_kernel.errors import InvalidRequest, RequestFailed, RequestTimeout
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S, Gate, on_owner

LONG = SamplingParams(ignore_eos=True)


@pytest.fixture(scope="module")
def batching(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder), scheduler="mtp_batch", width=4, wait_ms=2) as engine:
        yield engine


@pytest.fixture
def service(batching: Engine) -> Iterator[MTPBatchGenerationService]:
    yield MTPBatchGenerationService(batching)
    for _ in range(2):  # a cancel is seen before the next forward
        on_owner(batching, lambda _: None)
    status = batching.status()
    assert (status["state"], status["running"], status["queue"]["waiting"]) == ("running", 0, 0)


@pytest.fixture(scope="module")
def alone(shared_engine: Engine) -> Callable[..., Generation]:
    """What the engine in mode serial answers."""
    return lambda *prompt, **options: shared_engine.generate(*prompt, **options)


def job(name: str = "a", **options: Any) -> MTPBatchJob:
    return MTPBatchJob(
        request_id=name, **{"prompt_ids": PROBE, "max_tokens": 8, "sampler": LONG, **options}
    )


def test_a_job_is_told_everything(
    service: MTPBatchGenerationService, alone: Callable[..., Generation]
) -> None:
    tokens: list[tuple[int, str]] = []
    fed: list[tuple[int, int]] = []
    asked = job(
        "my-name",
        token_callback=lambda token, text: tokens.append((token, text)),
        prefill_callback=lambda done, total: fed.append((done, total)),
        request_observability={},
        session_id="s-7",
        seed=3,
    )
    future = service.submit(asked)
    assert future is asked.future
    found = future.result(PATIENCE_S)
    assert found.request_id == "my-name"
    assert found.token_ids == alone(PROBE, max_tokens=8, ignore_eos=True).token_ids
    assert [token for token, _ in tokens] == list(found.token_ids)
    assert fed == [(4, 5)]
    assert asked.decode_started is not None
    assert found.window.first_token is not None
    assert asked.decode_started >= found.window.first_token
    seen = asked.request_observability
    assert seen is not None
    assert (seen["request_id"], seen["session_id"]) == ("my-name", "s-7")
    assert (seen["completion_tokens"], seen["seed"]) == (8, 3)
    assert (seen["mtp_batch_real_width"], seen["mtp_batch_route_id"]) == (1, "solo")
    assert "cached_tokens" not in seen  # no hook was given: the prefix cache is bypassed


def test_jobs_of_one_key_share_forwards(service: MTPBatchGenerationService) -> None:
    gate = Gate()
    first = service.submit(job("first", max_tokens=30, token_callback=gate))
    gate.await_reached()
    others = [service.submit(job(str(i), max_tokens=20)) for i in range(3)]
    apart = service.submit(job("apart", compatibility_key="apart"))
    gate.open()
    stats = [f.result(PATIENCE_S).stats for f in (first, *others)]
    assert {s.cohort_id for s in stats} == {stats[0].cohort_id}
    assert [s.mtp_batch_real_width for s in stats] == [4] * 4
    alone = apart.result(PATIENCE_S).stats
    assert alone.cohort_id != stats[0].cohort_id
    assert alone.mtp_batch_real_width == 1


def test_a_short_row_is_delivered_before_the_long_one(service: MTPBatchGenerationService) -> None:
    ended: list[str] = []
    jobs = [job("long", max_tokens=400), job("short", max_tokens=4)]
    for each in jobs:
        each.future.add_done_callback(lambda _, name=each.request_id: ended.append(name))
    futures = [service.submit(each) for each in jobs]
    assert [len(f.result(PATIENCE_S).token_ids) for f in futures] == [400, 4]
    assert ended == ["short", "long"]


@pytest.mark.parametrize("stage", ["waiting", "decoding"])
@pytest.mark.parametrize("error", [None, LookupError("gone")])
def test_a_cancel_event(
    service: MTPBatchGenerationService, stage: str, error: Exception | None
) -> None:
    gate = Gate(at=2)
    running = service.submit(job("r", max_tokens=5_000, token_callback=gate))
    gate.await_reached()
    key = "other" if stage == "waiting" else ""
    asked = job("c", max_tokens=5_000, cancel_error=error, compatibility_key=key)
    own = Gate() if stage == "decoding" else None
    if own is not None:
        asked.token_callback = own
    future = service.submit(asked)
    gate.open()
    if own is not None:
        own.await_reached()
    asked.cancel_event.set()
    if own is not None:
        own.open()
    if error is None:
        found = future.result(PATIENCE_S)
        assert found.finish_reason == "cancelled"
        assert bool(found.token_ids) == (stage == "decoding")
    else:
        with pytest.raises(LookupError, match="gone"):
            future.result(PATIENCE_S)
    assert not running.done()
    assert running.cancel()
    with pytest.raises(CancelledError):
        running.result(PATIENCE_S)


def test_limits(service: MTPBatchGenerationService) -> None:
    limits = GenerationLimits(max_total_tokens=9)
    found = service.submit(job(generation_limits=limits)).result(PATIENCE_S)
    assert (len(found.token_ids), found.finish_reason) == (4, "length")
    with pytest.raises(InvalidRequest, match="nothing is left for an answer"):
        service.submit(job(generation_limits=GenerationLimits(max_total_tokens=5)))
    slow = job(max_tokens=15_000, generation_limits=GenerationLimits(timeout_s=0.05))
    with pytest.raises(RequestTimeout, match=r"^cancelled: no result after 0.05 s$"):
        service.submit(slow).result(PATIENCE_S)
    for wrong in ({"max_total_tokens": 1}, {"timeout_s": 0}, {"timeout_s": True}):
        with pytest.raises(InvalidRequest):
            GenerationLimits(**wrong)  # type: ignore[arg-type]


def test_the_prefix_cache_is_used_through_the_hooks_only(
    service: MTPBatchGenerationService,
) -> None:
    store = PrefixCache(10**8)
    prompt = [(7 * i) % 250 for i in range(120)]
    hooks = {"session_restore": store, "session_commit": store}
    cached = []
    for given in (hooks, hooks, {}):
        found = service.submit(job(prompt_ids=prompt, **given)).result(PATIENCE_S)
        cached.append((found.stats.cached_tokens, found.token_ids))
    assert [count for count, _ in cached] == [0, 119, None]
    assert len({ids for _, ids in cached}) == 1
    assert store.snapshot()["hits"] == 1


def test_the_bonus_may_be_left_out(
    service: MTPBatchGenerationService, alone: Callable[..., Generation]
) -> None:
    prompt = [1, 2, 3, 4, 5] * 12
    expected = alone(prompt, max_tokens=40, ignore_eos=True)
    found = service.submit(
        job(prompt_ids=prompt, max_tokens=40, omit_speculative_bonus=True)
    ).result(PATIENCE_S)
    assert found.token_ids == expected.token_ids
    assert found.stats.verify_calls is not None


def test_a_closed_cohort(
    service: MTPBatchGenerationService, alone: Callable[..., Generation]
) -> None:
    starts: list[int] = []
    prompts = [[i, i + 1, i + 2] for i in (5, 60, 90)]
    requests = [
        MTPBatchRequest(
            prompt_ids=prompt,
            params=SamplingParams(max_tokens=5 + n, ignore_eos=True),
            on_decode_start=lambda n=n: starts.append(n),
        )
        for n, prompt in enumerate(prompts)
    ]
    found = service.generate_mtp_batch(requests, lane=4)
    stats = []
    for n, (each, prompt) in enumerate(zip(found, prompts, strict=True)):
        assert isinstance(each, Generation)
        assert each.token_ids == alone(prompt, max_tokens=5 + n, ignore_eos=True).token_ids
        stats.append(each.stats)
    assert sorted(starts) == [0, 1, 2]
    assert len({s.cohort_id for s in stats}) == 1
    assert [s.mtp_batch_real_width for s in stats] == [3] * 3
    assert [s.mtp_batch_fixed_width for s in stats] == [4] * 3
    for wrong in ([], requests * 2):
        with pytest.raises(InvalidRequest, match=r"^a cohort has 1 to 4 requests, not "):
            service.generate_mtp_batch(wrong)
    sampled = MTPBatchRequest(prompt_ids=PROBE, params=SamplingParams(temperature=1.0))
    with pytest.raises(InvalidRequest, match="must agree in mode"):
        service.generate_mtp_batch([requests[0], sampled])


@pytest.mark.parametrize("behaved", [True, False])
def test_a_solo_runner_wraps_the_run_of_a_job_that_nobody_may_join(
    tiny_folder: Path, alone: Callable[..., Generation], behaved: bool
) -> None:
    results: list[Mapping[str, Any]] = []

    def solo(run: Callable[[], Mapping[str, Any]]) -> None:
        if behaved:
            results.append(run())

    options: dict[str, Any] = {"scheduler": "mtp_batch", "width": 4, "sealed": True}
    with mk.load(str(tiny_folder), **options) as engine:
        future = MTPBatchGenerationService(engine).submit(job("s", solo_runner=solo))
        if not behaved:
            with pytest.raises(RequestFailed, match="whoever wraps its run did not run it"):
                future.result(PATIENCE_S)
            return
        found = future.result(PATIENCE_S)
        assert found.token_ids == alone(PROBE, max_tokens=8, ignore_eos=True).token_ids
        assert found.stats.mtp_batch_route_id == "solo"
        assert results[0]["completion_tokens"] == 8
        assert engine.status()["scheduler"]["mtp_batch"]["solo_runs"] == 1


def test_another_mode_is_refused(batching: Engine, service: MTPBatchGenerationService) -> None:
    batching.configure(scheduler="serial")
    for call in (lambda: service.submit(job()), lambda: MTPBatchGenerationService(batching)):
        with pytest.raises(InvalidRequest, match="the engine's scheduler is serial, and cohorts"):
            call()
    batching.configure(scheduler="mtp_batch", width=4, wait_ms=2)
    done = job("d")
    service.submit(done).result(PATIENCE_S)
    with pytest.raises(InvalidRequest, match="job 'd' has ended: submit a new one"):
        service.submit(done)


def test_many_threads_submit(
    service: MTPBatchGenerationService, alone: Callable[..., Generation]
) -> None:
    expected = {n: alone([n, n + 1], max_tokens=6, ignore_eos=True).token_ids for n in range(12)}
    found: dict[int, Any] = {}

    def work(n: int) -> None:
        asked = job(str(n), prompt_ids=[n, n + 1], max_tokens=6)
        found[n] = service.submit(asked).result(PATIENCE_S).token_ids

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == expected
    assert service.snapshot()["target_verify_cycles"] > 0
