"""Whatever goes wrong in one request ends that request alone, with its cause in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.engine.runner import Runner
from mtplx_kernel.errors import EngineClosed, InvalidRequest, RequestFailed
from tests.engine.conftest import PROBE, Start
from tests.engine.gates import PATIENCE_S, Gate, on_owner

MARKER = 250
"""A token that makes the forwards of some tests fail."""


@pytest.fixture
def runner(engine: Engine) -> Runner:
    assert engine._owner.runner is not None
    return engine._owner.runner


@pytest.fixture
def forward_refuses_marker(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = runner.step.target.forward

    def failing(tokens: mx.array, cache: Any) -> mx.array:
        if bool(mx.any(tokens == MARKER)):
            raise RuntimeError("[metal::malloc] Unable to allocate\n 9 bytes")
        return forward(tokens, cache)

    monkeypatch.setattr(runner.step.target, "forward", failing)


def failure(engine: Engine, prompt: Any = PROBE, **options: Any) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        engine.generate(prompt, **options)
    assert len(str(caught.value).splitlines()) == 1
    generation = caught.value.generation
    assert isinstance(generation, Generation)
    assert generation.finish_reason is FinishReason.ERROR
    assert generation.error == str(caught.value)
    assert generation.stats.completion_tokens == len(generation.token_ids)
    return caught.value


@pytest.mark.parametrize("mode", ["ar", "mtp"])
def test_a_callback_that_raises(engine: Engine, mode: str) -> None:
    seen: list[int] = []

    def on_token(token: int, text: str) -> None:
        seen.append(token)
        if len(seen) == 3:
            raise ValueError("no more\nroom")

    # A prompt that repeats itself, so that mode mtp fails inside a block of several tokens.
    prompt = [*PROBE, *engine.generate(PROBE, max_tokens=20, ignore_eos=True).token_ids, *PROBE]
    error = failure(engine, prompt, mode=mode, max_tokens=20, on_token=on_token)
    assert str(error) == "the on_token callback raised ValueError: no more room"
    generation = error.generation
    assert isinstance(generation, Generation)
    assert list(generation.token_ids[:3]) == seen
    assert generation.text == engine.tokenizer.decode(list(generation.token_ids))


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_cannot_end_the_owner_thread(engine: Engine, end: type[BaseException]) -> None:
    def on_token(token: int, text: str) -> None:
        raise end

    error = failure(engine, on_token=on_token)
    assert str(error) == f"the on_token callback raised {end.__name__}"


def test_a_callback_may_submit(engine: Engine) -> None:
    inner: list[Any] = []

    def on_token(token: int, text: str) -> None:
        if not inner:
            inner.append(engine.submit(PROBE, max_tokens=4))

    outer = engine.generate(PROBE, max_tokens=4, on_token=on_token)
    assert inner[0].result(PATIENCE_S).token_ids == outer.token_ids


@pytest.mark.parametrize("way", ["generate", "stream", "generate_batch", "result", "pieces"])
def test_a_callback_cannot_wait_for_the_model_that_waits_for_it(engine: Engine, way: str) -> None:
    pending: list[Any] = []

    def on_token(token: int, text: str) -> None:
        if way in ("generate", "stream"):
            getattr(engine, way)(PROBE)
        elif way == "generate_batch":
            engine.generate_batch([PROBE])
        else:
            pending.append(engine.submit(PROBE, max_tokens=2))
            pending[0].result() if way == "result" else next(iter(pending[0]))

    error = failure(engine, on_token=on_token)
    assert "an on_token callback cannot wait for a request" in str(error)
    assert [len(p.result(PATIENCE_S).token_ids) for p in pending] == [2] * len(pending)


def test_a_callback_that_closes_the_engine(start: Start) -> None:
    engine = start()

    def on_token(token: int, text: str) -> None:
        engine.close()

    handle = engine.submit(PROBE, mode="ar", max_tokens=1_000, ignore_eos=True, on_token=on_token)
    found = handle.result(PATIENCE_S)
    assert found.finish_reason is FinishReason.CANCELLED
    assert len(found.token_ids) == 1
    with pytest.raises(EngineClosed):
        engine.generate(PROBE)


def test_a_callback_that_drains_the_engine(start: Start) -> None:
    engine = start()
    gate = Gate()

    def on_token(token: int, text: str) -> None:
        gate(token, text)
        engine.close(drain=True)

    first = engine.submit(PROBE, max_tokens=3, on_token=on_token)
    gate.await_reached()
    second = engine.submit(PROBE, max_tokens=3)
    gate.open()
    assert [len(h.result(PATIENCE_S).token_ids) for h in (first, second)] == [3, 3]


@pytest.fixture
def broken_weight(engine: Engine, runner: Runner) -> Iterator[None]:
    """A key projection full of NaN, so that the caches fill with NaN as well."""
    attention = runner.step.target.model.model.layers[0].self_attn
    good = attention.k_proj.weight

    def put(weight: mx.array) -> None:
        attention.k_proj.weight = weight

    on_owner(engine, lambda _: put(mx.full(good.shape, float("nan"))))
    yield
    on_owner(engine, lambda _: put(good))


@pytest.mark.usefixtures("broken_weight")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite(engine: Engine, temperature: float) -> None:
    error = failure(engine, temperature=temperature)
    assert str(error) == "the model's logits are not finite (NaN or infinity) at token 5"


def test_logits_that_stop_being_finite(
    engine: Engine, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, calls = runner.step.target.logits, []

    def failing(hidden: mx.array) -> mx.array:
        calls.append(hidden)
        return logits(hidden) * (float("nan") if len(calls) == 4 else 1.0)

    good = engine.generate(PROBE, max_tokens=3).token_ids
    monkeypatch.setattr(runner.step.target, "logits", failing)
    error = failure(engine, mode="ar", max_tokens=9)
    assert "not finite (NaN or infinity) at token 8" in str(error)
    generation = error.generation
    assert isinstance(generation, Generation)
    assert generation.token_ids == good


@pytest.mark.usefixtures("forward_refuses_marker")
@pytest.mark.parametrize("prompt", [[MARKER, *PROBE], [*PROBE, MARKER]], ids=["prefill", "decode"])
def test_a_forward_that_fails_ends_its_request_only(engine: Engine, prompt: list[int]) -> None:
    good = engine.generate(PROBE, max_tokens=6).token_ids
    first, bad, last = engine.generate_batch([PROBE, prompt, PROBE], max_tokens=6)
    assert isinstance(first, Generation)
    assert isinstance(last, Generation)
    assert first.token_ids == last.token_ids == good
    assert isinstance(bad, RequestFailed)
    assert str(bad) == (
        "the forward failed: RuntimeError: [metal::malloc] Unable to allocate 9 bytes"
    )


@pytest.mark.usefixtures("forward_refuses_marker")
def test_a_stream_gives_its_text_then_the_error(engine: Engine) -> None:
    stream = engine.stream([*PROBE, MARKER])
    with pytest.raises(RequestFailed, match="Unable to allocate"):
        next(stream)
    assert list(stream) == []


@pytest.mark.usefixtures("forward_refuses_marker")
def test_a_batch_keeps_its_order_around_failures(start: Start, engine: Engine) -> None:
    prompts: list[Any] = [PROBE, "", [MARKER, 1], [1, 2], [999], PROBE]
    found = engine.generate_batch(prompts, max_tokens=3)
    kinds = [Generation, InvalidRequest, RequestFailed, Generation, InvalidRequest, Generation]
    assert [type(f) for f in found] == kinds
    alone = [engine.generate(p, max_tokens=3).token_ids for p in (PROBE, [1, 2], PROBE)]
    assert [f.token_ids for f in found if isinstance(f, Generation)] == alone


@pytest.mark.parametrize("good_calls", [0, 1, 5])
def test_a_tokenizer_that_cannot_decode(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, good_calls: int
) -> None:
    kind = type(engine.tokenizer._tokenizer)
    decode, calls = kind.decode, []

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) > good_calls:
            raise IndexError("piece id is out of range")
        return decode(*args, **options)

    monkeypatch.setattr(kind, "decode", failing)
    what = "the (prompt|text) cannot be decoded"
    with pytest.raises(RequestFailed, match=f"^{what}: IndexError: piece id is out of range$"):
        engine.generate(PROBE)
    assert engine.timeline.windows()[-1].finish_reason == "error"


def test_a_drafter_that_fails_costs_only_speed(
    engine: Engine, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(rows: Any, depths: Any) -> Any:
        raise ZeroDivisionError("draft")

    good = engine.generate(PROBE, max_tokens=8)
    monkeypatch.setattr(runner.step.drafter, "propose", failing)
    found = engine.generate(PROBE, max_tokens=8)
    assert found.token_ids == good.token_ids
    assert found.stats.draft_error == "lookup: ZeroDivisionError: draft"
    assert "draft_error" not in good.stats.as_dict()


def test_an_error_raised_again_does_not_grow(engine: Engine) -> None:
    handle = engine.submit(PROBE, on_token=lambda *_: sys.exit(3))
    depths = []
    for _ in range(3):
        with pytest.raises(RequestFailed, match="SystemExit: 3") as caught:
            handle.result(PATIENCE_S)
        depths.append(len(caught.traceback))
    assert depths == [depths[0]] * 3
