"""Cancel, time out, interrupt: the request ends, keeps its text, and frees the engine at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.pieces import TextPieces
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import RequestTimeout
from mtplx_kernel.scheduling.policy import PREFILL_CHUNK
from tests.engine.conftest import CONTEXT, PROBE
from tests.engine.gates import PATIENCE_S, Gate, interrupt_after, on_owner

LONG: dict[str, Any] = {"max_tokens": CONTEXT - 100, "ignore_eos": True}
"""Minutes of work: no test waits for its end."""


def test_cancel_while_queued(engine: Engine) -> None:
    gate = Gate()
    running = engine.submit(PROBE, max_tokens=3, on_token=gate)
    gate.await_reached()
    queued = engine.submit(PROBE, **LONG)
    assert engine.status()["queue"]["waiting"] == 1
    queued.cancel()
    gate.open()
    found = queued.result(PATIENCE_S)
    assert (found.finish_reason, found.token_ids, found.text) == (FinishReason.CANCELLED, (), "")
    assert found.window.admitted is None
    assert {"queue_wait_s", "ttft_s", "verify_calls"}.isdisjoint(found.stats.as_dict())
    assert running.result(PATIENCE_S).finish_reason is FinishReason.LENGTH


def test_cancel_while_prefilling(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = engine._owner.runner
    assert runner is not None
    gate, prefill = Gate(), runner.step.prefill
    chunks: list[int] = []

    def held(rows: Any, counts: list[int]) -> None:
        chunks.extend(counts)
        gate(0, "")
        prefill(rows, counts)

    monkeypatch.setattr(runner.step, "prefill", held)
    handle = engine.submit([1, 2, 3, 4] * 2_000, **LONG)
    gate.await_reached()
    handle.cancel()
    gate.open()
    found = handle.result(PATIENCE_S)
    assert found.finish_reason is FinishReason.CANCELLED
    assert found.token_ids == ()
    assert found.window.admitted is not None
    assert chunks == [PREFILL_CHUNK["cpu"]]  # of many, only the one that ran


def test_cancel_while_decoding_keeps_the_text(engine: Engine) -> None:
    gate = Gate(at=4)
    handle = engine.submit(PROBE, mode="ar", on_token=gate, **LONG)
    gate.await_reached()
    handle.cancel()
    gate.open()
    found = handle.result(PATIENCE_S)
    assert found.finish_reason is FinishReason.CANCELLED
    assert found.token_ids == engine.generate(PROBE, max_tokens=4).token_ids
    assert "".join(handle) == found.text
    assert found.window.finish_reason == "cancelled"


def test_cancel_after_the_end_and_twice(engine: Engine) -> None:
    ended = engine.submit(PROBE, max_tokens=2)
    before = ended.result(PATIENCE_S)
    ended.cancel()
    ended.cancel(FinishReason.INTERRUPTED)
    assert ended.result() is before
    assert before.finish_reason is FinishReason.LENGTH
    running = engine.submit(PROBE, **LONG)
    running.cancel(FinishReason.INTERRUPTED)
    running.cancel()
    assert running.result(PATIENCE_S).finish_reason is FinishReason.INTERRUPTED


def test_a_callback_may_cancel_its_own_request(engine: Engine) -> None:
    handles: list[Any] = []
    gate = Gate()

    def on_token(token: int, text: str) -> None:
        gate(token, text)
        handles[0].cancel()

    handles.append(engine.submit(PROBE, mode="ar", on_token=on_token, **LONG))
    gate.await_reached()
    gate.open()
    found = handles[0].result(PATIENCE_S)
    assert found.finish_reason is FinishReason.CANCELLED
    assert len(found.token_ids) == 1


def test_a_result_timeout_leaves_the_request_running(engine: Engine) -> None:
    gate = Gate()
    handle = engine.submit(PROBE, max_tokens=5, on_token=gate)
    gate.await_reached()
    with pytest.raises(RequestTimeout, match=r"has not ended after 0\.01 s; it goes on"):
        handle.result(0.01)
    with pytest.raises(TimeoutError):
        handle.result(0)
    assert not handle.done
    gate.open()
    assert len(handle.result(float("inf")).token_ids) == 5


def test_a_generate_timeout_cancels(engine: Engine) -> None:
    with pytest.raises(RequestTimeout, match=r"cancelled: no result after 0\.05 s") as caught:
        engine.generate(PROBE, timeout=0.05, **LONG)
    assert len(str(caught.value).splitlines()) == 1
    on_owner(engine, lambda _: None)
    assert engine.timeline.windows()[-1].finish_reason == "cancelled"


def ends_of(engine: Engine, count: int) -> list[str | None]:
    on_owner(engine, lambda _: None)
    return [w.finish_reason for w in engine.timeline.windows()[-count:]]


def test_interrupt_in_generate(engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROBE, on_token=interrupt_after(20), **LONG)
    assert ends_of(engine, 1) == ["interrupted"]


def test_interrupt_in_stream(engine: Engine) -> None:
    pieces: list[str] = []
    stream = engine.stream(PROBE, on_token=interrupt_after(20), **LONG)
    with pytest.raises(KeyboardInterrupt):
        pieces.extend(iter(stream.__next__, None))
    assert ends_of(engine, 1) == ["interrupted"]
    assert list(stream) == []


def test_interrupt_in_the_body_of_a_loop_over_stream(engine: Engine) -> None:
    def read() -> None:
        for _ in engine.stream(PROBE, **LONG):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read()
    assert ends_of(engine, 1) == ["cancelled"]


def test_interrupt_in_generate_batch(engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        engine.generate_batch([PROBE] * 4, on_token=interrupt_after(20), **LONG)
    assert ends_of(engine, 4) == ["interrupted"] * 4


class InterruptAt:
    """A profiler that raises KeyboardInterrupt at one step of the code that opens a request.

    Its steps are the places where Python looks for signals: calls, returns, and ends of C calls.
    """

    EVENTS = ("call", "return", "c_return")
    CODE = ("engine/engine.py", "engine/intake.py", "engine/ledger.py", "engine/opened.py")

    def __init__(self, step: int) -> None:
        self.waited = False
        self._left = step

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file, name = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
        self.waited = self.waited or (file.endswith("engine/request.py") and name == "wait")
        if not self.waited:
            if event not in self.EVENTS or not file.endswith(self.CODE):
                return
            self._left -= 1
            if self._left >= 0:
                return
        raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["generate", "stream", "generate_batch"])
def test_an_interrupt_anywhere_leaves_nothing_running(engine: Engine, way: str) -> None:
    prompt = [PROBE] if way == "generate_batch" else PROBE

    def ask(step: int) -> bool:
        """Whether the interrupt came before the call had ended, or waited."""
        interrupt = InterruptAt(step)
        sys.setprofile(interrupt)
        try:
            # A stream is let go below: Python drops an interrupt that comes inside a __del__.
            result = getattr(engine, way)(prompt, **LONG)
        except KeyboardInterrupt:
            return not interrupt.waited
        finally:
            sys.setprofile(None)
        del result
        return False

    before = len(engine.timeline.windows())
    steps = 0
    while ask(steps):
        steps += 1
        on_owner(engine, lambda _: None)
        status = engine.status()
        assert (steps, status["running"], status["queue"]["waiting"]) == (steps, 0, 0)
    on_owner(engine, lambda _: None)
    ends = [w.finish_reason for w in engine.timeline.windows()[before:]]
    assert set(ends) <= {"interrupted", "cancelled"}
    assert steps > len(ends) > 5  # some came before the request was known, some after


def close(stream: TextPieces) -> None:
    stream.close()


def drop(stream: TextPieces) -> None:
    """Nothing refers to it once this returns."""


@pytest.mark.parametrize("read", [0, 2])
@pytest.mark.parametrize("let_go", [close, drop])
def test_a_stream_that_is_let_go_is_cancelled(
    engine: Engine, read: int, let_go: Callable[[TextPieces], None]
) -> None:
    stream = engine.stream(PROBE, **LONG)
    for _ in range(read):
        next(stream)
    let_go(stream)
    if let_go is close:
        assert list(stream) == []
    del stream
    assert ends_of(engine, 1) == ["cancelled"]


def test_a_stream_read_to_its_end(engine: Engine) -> None:
    stream = engine.stream(PROBE, max_tokens=6)
    text = "".join(stream)
    assert list(stream) == []
    stream.close()
    found = engine.generate(PROBE, max_tokens=6)
    assert isinstance(found, Generation)
    assert text == found.text
    assert ends_of(engine, 2) == ["length", "length"]
