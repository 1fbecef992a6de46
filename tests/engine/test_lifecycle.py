"""From load to close: what runs ends once, threads and memory go, and nobody is left waiting."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import mlx.core as mx
import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.request import FinishReason, Handle
from mtplx_kernel.errors import EngineClosed
from tests.engine.conftest import PROBE, Start
from tests.engine.gates import (
    PATIENCE_S,
    Gate,
    in_time,
    interrupt_main_thread,
    on_owner,
    owner_threads,
)
from tests.engine.test_cancel import LONG


def pause() -> None:
    """Give another thread its turn."""
    threading.Event().wait(0.005)


def assert_refuses(engine: Engine, why: str) -> None:
    calls: list[Any] = [
        lambda: engine.generate(PROBE),
        lambda: engine.stream(PROBE),
        lambda: engine.submit(PROBE),
        lambda: engine.generate_batch([PROBE]),
        lambda: engine.configure(mode="ar"),
        lambda: anyio.run(engine.agenerate, PROBE),
    ]
    for call in calls:
        with pytest.raises(EngineClosed) as caught:
            call()
        assert str(caught.value) == f"the engine takes no requests: {why}; load a model again"


def assert_tells_only_what_it_knows(status: dict[str, Any]) -> None:
    """Nothing of what an engine measured or ran is said of one that is gone."""
    gone = {"drafters", "verify_ms", "scheduler", "weights_bytes", "caches_bytes"}
    assert gone.isdisjoint(status)
    assert status["model"]["name"] == "tiny-llama"
    assert status["caches"] == {"rollback": True, "reason": None}


def test_close_ends_what_runs_and_what_waits(start: Start) -> None:
    engine = start()
    gate = Gate(at=3)
    running = engine.submit(PROBE, mode="ar", on_token=gate, **LONG)
    gate.await_reached()
    waiting = [engine.submit(PROBE, **LONG) for _ in range(3)]
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine.closed:
        pause()
    gate.open()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert running.done
    assert running.result().finish_reason is FinishReason.CANCELLED
    assert len(running.result().token_ids) >= 3
    for handle in waiting:
        assert handle.done
        assert (handle.result().finish_reason, handle.result().token_ids) == ("cancelled", ())
    assert_refuses(engine, "it was closed")
    status = engine.status()
    assert (status["state"], status["reason"]) == ("closed", "it was closed")
    assert (status["running"], status["queue"]["waiting"]) == (0, 0)
    assert status["memory_bytes"] == 0
    assert_tells_only_what_it_knows(status)
    assert repr(engine).endswith("closed>")


def test_close_with_drain_finishes_them(start: Start, probe_ids: tuple[int, ...]) -> None:
    engine = start()
    handles = [engine.submit(PROBE, max_tokens=12) for _ in range(4)]
    engine.close(drain=True)
    assert [h.done for h in handles] == [True] * 4
    assert [h.result().token_ids for h in handles] == [probe_ids] * 4
    assert_refuses(engine, "it was closed")


def test_a_drain_may_be_cut_short(start: Start) -> None:
    engine = start()

    def on_token(token: int, text: str) -> None:
        if not interrupted and engine.closed:
            interrupted.append(token)
            interrupt_main_thread()

    interrupted: list[int] = []
    handle = engine.submit(PROBE, on_token=on_token, **LONG)
    with pytest.raises(KeyboardInterrupt):
        engine.close(drain=True)
    assert engine.closed
    engine.close()
    assert handle.result().finish_reason is FinishReason.CANCELLED


def test_close_twice_and_from_several_threads(start: Start) -> None:
    engine = start()
    handle = engine.submit(PROBE, **LONG)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: engine.close(drain=i == 5), range(6)))
    engine.close()
    engine.close(drain=True)
    assert handle.result().finish_reason is FinishReason.CANCELLED


def test_a_with_block_closes(tiny_folder: Path) -> None:
    with mk.load(str(tiny_folder)) as engine:
        stream = engine.stream(PROBE, **LONG)
        next(stream)
    assert engine.closed
    stream.close()
    assert engine.timeline.windows()[-1].finish_reason == "cancelled"


def test_a_handle_and_a_stream_outlive_the_engine(start: Start) -> None:
    engine = start()
    handle = engine.submit(PROBE, max_tokens=5)
    stream = engine.stream(PROBE, max_tokens=5)
    engine.close(drain=True)
    text = handle.result().text
    handle.cancel()
    assert "".join(handle) == "".join(stream) == text


def test_no_thread_is_left_after_close(start: Start) -> None:
    before = set(threading.enumerate())
    engine = start()
    (owner,) = set(threading.enumerate()) - before
    assert owner.name == "mtplx-owner-tiny-llama"
    assert owner.daemon
    engine.generate(PROBE, max_tokens=2)
    list(engine.stream(PROBE, max_tokens=2))
    engine.generate_batch([PROBE] * 3, max_tokens=2)
    anyio.run(lambda: engine.agenerate(PROBE, max_tokens=2))
    engine.close()
    assert set(threading.enumerate()) <= before


def test_an_engine_that_nobody_holds_lets_its_model_go(tiny_folder: Path) -> None:
    gc.collect()
    memory, threads = mx.get_active_memory(), set(owner_threads())
    engine = mk.load(str(tiny_folder))
    handle = engine.submit(PROBE, max_tokens=3)
    (owner,) = set(owner_threads()) - threads
    tokens = handle.result(PATIENCE_S).token_ids
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    owner.join(PATIENCE_S)
    assert gone() is None
    assert not owner.is_alive()
    assert mx.get_active_memory() == memory
    assert handle.result().token_ids == tokens


def test_an_open_request_keeps_its_engine(tiny_folder: Path, probe_ids: tuple[int, ...]) -> None:
    threads = set(owner_threads())

    def ask() -> Handle:
        return mk.load(str(tiny_folder)).submit(PROBE, max_tokens=12)

    handle = ask()
    gc.collect()
    assert handle.result(PATIENCE_S).token_ids == probe_ids
    gc.collect()
    for owner in set(owner_threads()) - threads:
        owner.join(PATIENCE_S)
        assert not owner.is_alive()


def test_memory_is_flat_over_many_engines(tiny_folder: Path) -> None:
    def cycle() -> int:
        with mk.load(str(tiny_folder)) as engine:
            assert engine.status()["memory_bytes"] > 700_000
            engine.generate(PROBE, max_tokens=2)
        return int(mx.get_active_memory())

    gc.collect()
    base = mx.get_active_memory()
    assert [cycle() for _ in range(50)] == [base] * 50
    assert mx.get_cache_memory() < 1_000  # the model is 725 kB


def test_engines_do_not_count_each_others_memory(start: Start) -> None:
    first = start()
    first.generate(PROBE, max_tokens=2)
    before = first.status()["memory_bytes"]
    second = start()
    second.generate(PROBE, max_tokens=2)
    first.generate(PROBE, max_tokens=2)
    status = first.status()
    assert status["weights_bytes"] == 4 * status["model"]["parameters"]
    assert status["memory_bytes"] == status["weights_bytes"] + status["caches_bytes"]
    assert status["memory_bytes"] == second.status()["memory_bytes"] == before


def break_policy(engine: Engine) -> None:
    """Make the owner thread's own code fail, which nothing of a request can."""
    runner = engine._owner.runner
    assert runner is not None

    def broken(now: float) -> None:
        raise AssertionError("lost\ncount")

    runner.modes.relay.next = broken  # type: ignore[method-assign]


def test_when_the_owner_thread_dies_all_are_told(start: Start) -> None:
    engine = start()
    gate = Gate()
    running = engine.submit(PROBE, on_token=gate, **LONG)
    gate.await_reached()
    waiting = engine.submit(PROBE, **LONG)
    stream = engine.stream(PROBE, **LONG)
    calls: list[Callable[[], Any]] = [
        running.result,
        waiting.result,
        lambda: list(stream),
        lambda: engine.generate(PROBE, **LONG),
        lambda: anyio.run(lambda: engine.agenerate(PROBE, **LONG)),
    ]
    why = "the engine's owner thread died: AssertionError: lost count"
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(in_time, call) for call in calls]
        while engine.status()["queue"]["waiting"] < 4:
            pause()
        break_policy(engine)
        gate.open()
        for future in futures:
            with pytest.raises(EngineClosed) as caught:
                future.result(PATIENCE_S)
            assert str(caught.value) == why
    status = engine.status()
    assert (status["state"], status["reason"]) == ("dead", why)
    assert (status["running"], status["queue"]["waiting"]) == (0, 0)
    assert status["memory_bytes"] == 0
    assert_tells_only_what_it_knows(status)
    windows = engine.timeline.windows()
    assert [w.finish_reason for w in windows] == ["error"] * len(calls)
    assert all(w.ended is not None and w.ended >= w.submitted for w in windows)
    assert_refuses(engine, why)
    engine.close()
    engine.close(drain=True)
    assert engine.status()["state"] == "dead"


def test_a_death_lets_the_model_go(start: Start) -> None:
    gc.collect()
    memory, threads = mx.get_active_memory(), set(owner_threads())
    engine = start()
    (owner,) = set(owner_threads()) - threads
    on_owner(engine, lambda _: None)
    break_policy(engine)
    handle = engine.submit(PROBE)
    with pytest.raises(EngineClosed, match="lost count"):
        handle.result(PATIENCE_S)
    owner.join(PATIENCE_S)
    assert not owner.is_alive()
    assert mx.get_active_memory() == memory
