"""The client and this package's endpoint together: what the engine says is what arrives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mtplx_kernel as mk
from mtplx_kernel.client import Completion, MTPLXClient
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import EndpointError
from mtplx_kernel.server.thread import serve
from tests.client.scripted import PATIENCE_S
from tests.tiny import write

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("served") / "tiny"
    with mk.load(str(write("llama", folder, max_position_embeddings=20_000))) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[MTPLXClient]:
    with (
        engine.serve() as endpoint,
        MTPLXClient(endpoint.url, token=endpoint.token) as client,
    ):
        yield client


def test_a_text_goes_on_as_the_engine_writes_it(engine: Engine, client: MTPLXClient) -> None:
    expected = engine.generate(PROMPT, raw=True, max_tokens=24)
    whole = client.generate(PROMPT, max_tokens=24, temperature=0)
    stream = client.stream(PROMPT, max_tokens=24, temperature=0)
    pieces = list(stream)
    assert whole.text == expected.text == "".join(pieces) == stream.completion.text
    assert len(pieces) > 1
    assert whole.finish_reason == stream.completion.finish_reason == "length"
    assert whole.usage is not None
    assert stream.completion.usage is not None
    assert whole.usage.completion_tokens == stream.completion.usage.completion_tokens == 24
    assert whole.raw.keys() == stream.completion.raw.keys()
    assert whole.choices == stream.completion.choices


def test_a_chat_is_answered_as_by_the_engine(engine: Engine, client: MTPLXClient) -> None:
    expected = engine.generate(MESSAGES, system="Be brief.", max_tokens=16).text
    found = client.chat("Hello", system="Be brief.", max_tokens=16, temperature=0)
    assert found.text == expected
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    options = {"max_tokens": 16, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    stream = client.stream(messages, **options)
    assert "".join(stream) == expected
    assert client.generate(messages, **options).choices == stream.completion.choices


def test_answers_of_a_seed_are_those_of_the_engine(engine: Engine, client: MTPLXClient) -> None:
    found = client.generate(PROMPT, max_tokens=12, temperature=0.8, seed=7, n=3)
    assert [choice.text for choice in found.choices] == [
        engine.generate(PROMPT, raw=True, max_tokens=12, temperature=0.8, seed=7 + i).text
        for i in range(3)
    ]


@pytest.mark.parametrize(
    ("mode", "ran"), [("mtp", "mtp"), ("ar", "ar"), ("hyper", "mtp"), (None, "mtp")]
)
def test_a_concurrency_mode_is_what_runs(engine: Engine, mode: str | None, ran: str) -> None:
    with (
        engine.serve() as endpoint,
        MTPLXClient(
            endpoint.url,
            concurrency_mode=mode,  # type: ignore[arg-type]
            token=endpoint.token,
        ) as asked,
    ):
        found = asked.generate(PROMPT, max_tokens=8, temperature=0, include_stats=True)
    (stats,) = found.raw["mtplx"]["choices"]
    assert stats["generation_mode"] == ran
    assert found.text == engine.generate(PROMPT, raw=True, max_tokens=8).text


def test_a_batch_keeps_its_order_and_its_errors(engine: Engine, client: MTPLXClient) -> None:
    prompts = ["A fruit", "", *(f"Number {n}" for n in range(10))]
    found = client.batch_generate(prompts, max_tokens=6, temperature=0)
    assert isinstance(found[1], EndpointError)
    assert (found[1].status, found[1].param) == (400, "prompt")
    answers = [each for each in found if isinstance(each, Completion)]
    assert [each.text for each in answers] == [
        engine.generate(prompt, raw=True, max_tokens=6).text for prompt in prompts if prompt
    ]


def test_what_the_endpoint_refuses_names_its_parameter(client: MTPLXClient) -> None:
    with pytest.raises(EndpointError, match="temperature") as caught:
        client.generate(PROMPT, temperature=9)
    assert (caught.value.status, caught.value.param) == (400, "temperature")
    with pytest.raises(EndpointError, match="unknown field 'colour'"):
        client.generate(PROMPT, colour="red")
    with pytest.raises(EndpointError) as caught:
        client.generate(PROMPT, model="other")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_a_stream_that_is_left_frees_its_place(engine: Engine, client: MTPLXClient) -> None:
    with client.stream(PROMPT, max_tokens=10_000, ignore_eos=True) as stream:
        next(stream)
        assert client.status()["running"] == 1
    end = time.monotonic() + PATIENCE_S
    while engine.status()["running"]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert engine.timeline.windows()[-1].finish_reason == "cancelled"


def test_another_model_behind_the_same_address_is_found(engine: Engine, tmp_path: Path) -> None:
    with mk.load(str(write("llama", tmp_path / "other"))) as other:
        served = [engine]
        with (
            serve(lambda: served[-1]) as endpoint,
            MTPLXClient(endpoint.url, token=endpoint.token) as asked,
        ):
            assert asked.generate(PROMPT, max_tokens=1).model == "tiny"
            served.append(other)
            assert asked.generate(PROMPT, max_tokens=1).model == "other"
