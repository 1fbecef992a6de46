"""Many callers at once: every request ends as if it had been alone, and the queue has an end."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.request import Generation
from mtplx_kernel.errors import InvalidRequest, QueueFull, RequestFailed
from tests.engine.conftest import PROBE, Start
from tests.engine.gates import PATIENCE_S, Gate, on_owner
from tests.engine.test_cancel import LONG


def request(i: int) -> tuple[list[int], dict[str, Any]]:
    """The i-th of many requests that differ in everything."""
    options = {
        "max_tokens": 4 + i % 5,
        "temperature": (i % 3) / 2,
        "seed": i,
        "mode": ("ar", "mtp")[i % 2],
    }
    return [(i * 7 + j * j) % 250 for j in range(3 + i % 9)], options


def test_fifty_submits_from_eight_threads(engine: Engine) -> None:
    requests = [request(i) for i in range(50)]
    alone = [engine.generate(p, **o).token_ids for p, o in requests]
    start = threading.Barrier(8)

    def work(first: int) -> list[tuple[int, Any]]:
        start.wait(PATIENCE_S)
        return [
            (i, engine.submit(requests[i][0], **requests[i][1]))
            for i in range(first, len(requests), 8)
        ]

    with ThreadPoolExecutor(8) as pool:
        handles = dict(pair for part in pool.map(work, range(8)) for pair in part)
    assert [handles[i].result(PATIENCE_S).token_ids for i in range(50)] == alone
    assert len({h.request_id for h in handles.values()}) == 50


def test_many_threads_generate_stream_and_cancel(engine: Engine) -> None:
    expected = engine.generate(PROBE, max_tokens=6)

    def work(i: int) -> object:
        if i % 3 == 0:
            return engine.generate(PROBE, max_tokens=6).text
        if i % 3 == 1:
            return "".join(engine.stream(PROBE, max_tokens=6))
        handle = engine.submit(PROBE, **LONG)
        handle.cancel()
        return str(handle.result(PATIENCE_S).finish_reason)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(24)))
    assert found == [expected.text, expected.text, "cancelled"] * 8


def test_first_in_first_out(engine: Engine) -> None:
    gate = Gate()
    engine.submit(PROBE, max_tokens=1, on_token=gate)
    order: list[int] = []
    handles = [
        engine.submit(PROBE, max_tokens=1, on_token=lambda *_, i=i: order.append(i))
        for i in range(10)
    ]
    gate.open()
    assert [len(h.result(PATIENCE_S).token_ids) for h in handles] == [1] * 10
    assert order == list(range(10))


def test_a_full_queue_refuses_and_recovers(start: Start, probe_ids: tuple[int, ...]) -> None:
    engine = start(queue_limit=3)
    gate = Gate()
    running = engine.submit(PROBE, max_tokens=12, on_token=gate)
    gate.await_reached()
    waiting = [engine.submit(PROBE, max_tokens=12) for _ in range(3)]
    for refused in (engine.submit, engine.generate, engine.stream):
        with pytest.raises(QueueFull) as caught:
            refused(PROBE)
        assert (
            str(caught.value) == "3 requests wait, as many as may: try again when some have ended"
        )
    assert engine.status()["queue"] == {"waiting": 3, "limit": 3}
    assert engine.status()["running"] == 1
    waiting[1].cancel()
    gate.open()
    for handle in (running, waiting[0], waiting[2]):
        assert handle.result(PATIENCE_S).token_ids == probe_ids
    assert waiting[1].result(PATIENCE_S).token_ids == ()
    assert engine.generate(PROBE, max_tokens=12).token_ids == probe_ids


def test_a_batch_may_be_longer_than_the_queue(start: Start) -> None:
    engine = start(queue_limit=2)
    prompts: list[Any] = [[i, i + 1] for i in range(9)]
    prompts[4] = [999]
    found = engine.generate_batch(prompts, max_tokens=3)
    alone = [engine.generate([i, i + 1], max_tokens=3).token_ids for i in range(9)]
    assert isinstance(found[4], InvalidRequest)
    for i, each in enumerate(found):
        assert i == 4 or (isinstance(each, Generation) and each.token_ids == alone[i])


def test_a_batch_beside_others_in_a_full_queue(start: Start) -> None:
    engine = start(queue_limit=1)
    gate = Gate()
    running = engine.submit(PROBE, max_tokens=2, on_token=gate)
    gate.await_reached()
    waiting = engine.submit(PROBE, max_tokens=2)
    # Nothing of the batch's own ends and makes room: it is told so instead of waiting for ever.
    assert [type(f) for f in engine.generate_batch([PROBE, PROBE])] == [QueueFull] * 2
    gate.open()
    assert [len(h.result(PATIENCE_S).token_ids) for h in (running, waiting)] == [2, 2]


def test_an_empty_batch(engine: Engine) -> None:
    assert engine.generate_batch([]) == []


def test_many_concurrent_agenerates(engine: Engine) -> None:
    requests = [request(i) for i in range(20)]
    alone = [engine.generate(p, **o).token_ids for p, o in requests]
    found: dict[int, Generation] = {}

    async def one(i: int) -> None:
        found[i] = await engine.agenerate(requests[i][0], **requests[i][1])

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for i in range(20):
                group.start_soon(one, i)

    anyio.run(main)
    assert [found[i].token_ids for i in range(20)] == alone


def test_agenerate_raises_what_generate_raises(engine: Engine) -> None:
    def on_token(token: int, text: str) -> None:
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(InvalidRequest, match="top_k"):
            await engine.agenerate(PROBE, top_k=-1)
        with pytest.raises(RequestFailed, match="ValueError: no"):
            await engine.agenerate(PROBE, on_token=on_token)

    anyio.run(main)


def last_end(engine: Engine) -> str | None:
    on_owner(engine, lambda _: None)
    return engine.timeline.windows()[-1].finish_reason


def test_a_cancel_scope_frees_the_slot(engine: Engine) -> None:
    async def main() -> None:
        gate = Gate(at=2)
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                await engine.agenerate(PROBE, on_token=gate, **LONG)

            group.start_soon(ask)
            await anyio.to_thread.run_sync(gate.await_reached)
            group.cancel_scope.cancel()
            gate.open()

    anyio.run(main)
    assert last_end(engine) == "cancelled"


def test_an_async_timeout_frees_the_slot(engine: Engine) -> None:
    async def main() -> bool:
        with anyio.move_on_after(0.05) as scope:
            await engine.agenerate(PROBE, **LONG)
        return scope.cancelled_caught

    assert anyio.run(main)
    assert last_end(engine) == "cancelled"


def test_a_cancelled_task_frees_the_slot(engine: Engine) -> None:
    async def main() -> None:
        gate = Gate()
        task = asyncio.create_task(engine.agenerate(PROBE, on_token=gate, **LONG))
        await asyncio.to_thread(gate.await_reached)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()

    asyncio.run(main())
    assert last_end(engine) == "cancelled"


def test_the_event_loop_runs_on_while_a_model_works(engine: Engine) -> None:
    async def main() -> list[str]:
        order: list[str] = []
        gate = Gate()

        async def ask() -> None:
            await engine.agenerate(PROBE, max_tokens=3, on_token=gate)
            order.append("answer")

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.to_thread.run_sync(gate.await_reached)
            order.append("loop")
            gate.open()
        return order

    assert anyio.run(main) == ["loop", "answer"]
