"""Objects of callers that break their promises: each ends its own request, never the engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.caching.prefix import PrefixCache
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.mtp_batch import GenerationLimits, MTPBatchGenerationService, MTPBatchJob
from mtplx_kernel.engine.request import Generation, Handle
from mtplx_kernel.errors import InvalidRequest, RequestFailed, RequestTimeout
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S, Gate, in_time, on_owner


@pytest.fixture(scope="module")
def batching(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder), scheduler="mtp_batch", width=4, wait_ms=2) as engine:
        yield engine


@pytest.fixture
def service(batching: Engine) -> Iterator[MTPBatchGenerationService]:
    """A service whose engine must work as ever after each test."""
    batching.configure(scheduler="mtp_batch", width=4, wait_ms=2)
    yield MTPBatchGenerationService(batching)
    assert batching.generate(PROBE, max_tokens=4, timeout=PATIENCE_S).stats.completion_tokens == 4
    status = batching.status()
    assert (status["state"], status["running"], status["queue"]["waiting"]) == ("running", 0, 0)


def job(name: str = "a", **options: Any) -> MTPBatchJob:
    known: dict[str, Any] = {"prompt_ids": PROBE, "max_tokens": 8}
    known["sampler"] = SamplingParams(ignore_eos=True)
    return MTPBatchJob(request_id=name, **{**known, **options})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cancel_event", None),
        ("request_observability", ()),
        ("cancel_error", "gone"),
        ("token_callback", 3),
        ("prefill_callback", "x"),
        ("solo_runner", object()),
        ("session_restore", {}),
        ("session_commit", 1),
    ],
)
def test_wrong_kinds_are_refused_before_any_work(
    service: MTPBatchGenerationService, name: str, value: object
) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{name} must be an? "):
        service.submit(job(**{name: value}))


class BadEvent(threading.Event):
    def is_set(self) -> bool:
        raise OSError("no such event")


def test_an_event_that_cannot_say_ends_its_job(service: MTPBatchGenerationService) -> None:
    good = service.submit(job("good"))
    with pytest.raises(RequestFailed, match="the cancelled callback raised OSError: no such event"):
        service.submit(job("bad", cancel_event=BadEvent())).result(PATIENCE_S)
    assert len(good.result(PATIENCE_S).token_ids) == 8


class BadStore(PrefixCache):
    """Raises wherever it is asked, and cannot even take note of it."""

    def find(self, ids: Any, *, drafting: bool = False) -> Any:
        raise ValueError("disk gone")

    def wants(self, *args: Any, **options: Any) -> bool:
        raise ValueError("disk gone")

    def failed(self, reason: str) -> None:
        raise ValueError(reason)


def test_a_store_that_fails_costs_only_its_use(service: MTPBatchGenerationService) -> None:
    store = BadStore(10**6)
    good = service.submit(job("good"))
    bad = service.submit(job("bad", session_restore=store, session_commit=store))
    assert bad.result(PATIENCE_S).token_ids == good.result(PATIENCE_S).token_ids


def test_whoever_is_told_of_an_end_may_fail(batching: Engine) -> None:
    batching.configure(scheduler="serial")
    handle = batching.submit(PROBE, max_tokens=3)

    def tell(_: Handle) -> None:
        raise SystemExit("enough")

    handle.when_done(tell)
    assert len(handle.result(PATIENCE_S).token_ids) == 3
    on_owner(batching, lambda _: None)
    assert handle.told_error == "SystemExit: enough"
    handle.when_done(lambda done: seen.append(done.done))
    seen: list[bool] = []
    handle.when_done(lambda done: seen.append(done.done))
    assert seen == [True]


def test_a_solo_runner_that_leaves_by_exit(tiny_folder: Path) -> None:
    def leave(run: Any) -> None:
        raise SystemExit(3)

    with mk.load(str(tiny_folder), scheduler="mtp_batch", sealed=True, width=4) as engine:
        service = MTPBatchGenerationService(engine)
        with pytest.raises(RequestFailed, match="its run failed: SystemExit: 3"):
            service.submit(job(solo_runner=leave)).result(PATIENCE_S)
        assert len(service.submit(job()).result(PATIENCE_S).token_ids) == 8

        def after(run: Any) -> None:
            run()
            raise OSError("too late")

        found = service.submit(job(solo_runner=after)).result(PATIENCE_S)
        assert found.finish_reason == "length"
        on_owner(engine, lambda _: None)
        assert engine.status()["scheduler"]["mtp_batch"]["last_error"] == "OSError: too late"


def test_waiting_for_a_job_in_a_callback_is_refused(service: MTPBatchGenerationService) -> None:
    gate = Gate()
    other = service.submit(job("other", max_tokens=4_000, token_callback=gate))
    gate.await_reached()
    bad = service.submit(job("bad", token_callback=lambda *_: other.result()))
    gate.open()
    with pytest.raises(RequestFailed, match="cannot wait for a request"):
        bad.result(PATIENCE_S)
    assert other.cancel()
    refused: list[BaseException] = []

    def closed_cohort(token: int, text: str) -> None:
        try:
            service.generate_mtp_batch([])
        except BaseException as error:
            refused.append(error)

    service.submit(job("asks", token_callback=closed_cohort)).result(PATIENCE_S)
    assert "cannot wait for a request" in str(refused[0])


def test_a_cancel_is_noticed_while_a_cohort_waits_for_more(
    batching: Engine, service: MTPBatchGenerationService
) -> None:
    long_ms = 3_600_000
    batching.configure(wait_ms=long_ms, max_wait_ms=long_ms)
    asked = job("c")
    future = service.submit(asked)
    asked.cancel_event.set()
    assert in_time(lambda: future.result(PATIENCE_S)).finish_reason == "cancelled"
    limited = service.submit(job("t", generation_limits=GenerationLimits(timeout_s=0.01)))
    with pytest.raises(RequestTimeout):
        limited.result(PATIENCE_S)
    batching.configure(wait_ms=2, max_wait_ms=2000)


@pytest.mark.parametrize("name", ["wait_ms", "max_wait_ms", "itl_ms"])
def test_waits_have_an_end(batching: Engine, name: str) -> None:
    batching.configure(scheduler="mtp_batch", width=4, wait_ms=2)
    with pytest.raises(InvalidRequest, match=rf"^{name} must be a number of milliseconds"):
        batching.configure(**{name: 1e13})


def test_the_gate_of_an_engine_has_no_way_into_its_queue(batching: Engine) -> None:
    with pytest.raises(InvalidRequest, match="only hyper has a gate"):
        _ = batching.gate
    batching.configure(scheduler="hyper")
    gate = batching.gate
    assert not hasattr(gate, "admit")
    assert not hasattr(gate, "bind")
    gate.install_width_executor(batching.fork_executor(2))
    batching.configure(scheduler="hyper", width=1)  # nothing changes: the executor stays
    assert batching.gate.snapshot()["width_executor_installed"]
    batching.gate.clear_width_executor()
    assert not gate.snapshot()["width_executor_installed"]


def test_status_is_read_while_requests_come_and_go(service: MTPBatchGenerationService) -> None:
    engine, stop, errors = service._engine, threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                engine.status()
            except Exception as error:
                errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    futures = [service.submit(job(str(n), compatibility_key=str(n % 3))) for n in range(60)]
    found = [future.result(PATIENCE_S) for future in futures]
    stop.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert errors == []
    assert len({f.token_ids for f in found}) == 1


def test_a_failed_request_tells_its_stats_too(service: MTPBatchGenerationService) -> None:
    def refuse(token: int, text: str) -> None:
        raise ValueError("no")

    asked = job("f", token_callback=refuse, request_observability={})
    with pytest.raises(RequestFailed):
        service.submit(asked).result(PATIENCE_S)
    assert asked.request_observability is not None
    assert asked.request_observability["request_id"] == "f"
    assert asked.request_observability["scheduler_mode"] == "mtp_batch"


def test_one_record_for_a_cohort_whose_rows_begin_late(service: MTPBatchGenerationService) -> None:
    before = len(service._engine.timeline.cohorts())
    long = [(3 * i) % 250 for i in range(900)]
    futures = [
        service.submit(job("short", max_tokens=1)),
        service.submit(job("long", prompt_ids=long, max_tokens=4)),
    ]
    stats = [future.result(PATIENCE_S).stats for future in futures]
    records = service._engine.timeline.cohorts()[before:]
    assert len(records) == len({s.cohort_id for s in stats})
    members = [member for record in records for member in record.members]
    assert len(members) == 2
    ended = [record.ended for record in records]
    assert None not in ended
    service._engine.configure(scheduler="serial")
    service._engine.generate(PROBE, max_tokens=2)  # of no cohort: it ends none
    service._engine.configure(scheduler="mtp_batch", width=4, wait_ms=2)
    assert [record.ended for record in records] == ended


def test_prefixes_leave_the_budget_to_rows(tiny_folder: Path) -> None:
    with mk.load(str(tiny_folder), prefix_cache_mb=0) as bare:
        weights = bare.status()["weights_bytes"]
    budget_gb = (weights + 3_000_000) / 1e9
    with mk.load(str(tiny_folder), memory_gb=budget_gb, prefix_cache_mb=100) as engine:
        for n in range(6):
            prompt = [(n + 7 * i) % 250 for i in range(700)]
            assert isinstance(engine.generate(prompt, max_tokens=2), Generation)
            status = engine.status()
            assert status["memory_bytes"] <= status["memory_budget_bytes"]
        assert status["prefix_cache"]["evictions"] > 0


def test_a_request_cancelled_while_it_waits_names_its_mode(
    service: MTPBatchGenerationService,
) -> None:
    gate = Gate()
    running = service.submit(job("r", max_tokens=2_000, token_callback=gate))
    gate.await_reached()
    waiting = job("w", compatibility_key="other")
    future = service.submit(waiting)
    waiting.cancel_event.set()
    gate.open()
    stats = future.result(PATIENCE_S).stats
    assert (stats.scheduler_mode, stats.scheduler_policy) == ("mtp_batch", "cohorts")
    assert stats.drafted_by_depth is None
    assert running.cancel()
    on_owner(service._engine, lambda _: None)
    on_owner(service._engine, lambda _: None)
