"""OpenAI's own Python client, unchanged, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.server.thread import serve
from tests.engine.conftest import PROBE
from tests.server.site import HELLO, MODEL
from tests.server.wire import TOKEN


@pytest.fixture(scope="module")
def client(served: Engine) -> Iterator[openai.OpenAI]:
    with (
        serve(lambda: served, token=TOKEN) as endpoint,
        openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key=TOKEN, max_retries=0) as opened,
    ):
        yield opened


def test_it_lists_the_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "mtplx-kernel")
    assert client.models.retrieve(MODEL) == model


def test_it_chats(client: openai.OpenAI, served: Engine) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=12,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        extra_body={"generation_mode": "ar", "include_stats": True},
    )
    (choice,) = answer.choices
    assert choice.message.content == served.generate(HELLO, max_tokens=12).text
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert {len(token.top_logprobs) for token in choice.logprobs.content} == {2}
    assert answer.model_extra is not None
    assert answer.model_extra["mtplx"]["choices"][0]["generation_mode"] == "ar"


def test_it_streams(client: openai.OpenAI, served: Engine) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == served.generate(HELLO, max_tokens=12).text
    assert (last.choices, last.usage and last.usage.completion_tokens) == ([], 12)


def test_it_completes(client: openai.OpenAI, served: Engine) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROBE, max_tokens=12, temperature=0, logprobs=2
    )
    expected = served.generate(PROBE, max_tokens=12, logprobs=2)
    assert answer.choices[0].text == expected.text
    assert expected.logprobs is not None
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs == pytest.approx(
        [token.logprob for token in expected.logprobs]
    )


class Trip(BaseModel):
    """Where to, and for how long."""

    city: str = Field(max_length=6)
    days: int = Field(ge=1, le=30)
    by: Literal["train", "bicycle"]
    stops: list[str] = Field(max_length=0)


def test_it_parses_an_answer_into_a_model(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello"}],
            response_format=Trip,
            temperature=1.2,
            seed=seed,
            max_completion_tokens=300,
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Trip)


def test_it_parses_calls_into_a_model(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Trip, name="plan")
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "plan"}},
        temperature=1.2,
        max_completion_tokens=400,
    )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Trip)
    history: Any = [
        {"role": "user", "content": "Hello"},
        choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "done"},
    ]
    for spoken in history[1]["tool_calls"]:
        del spoken["function"]["parsed_arguments"]
    again = client.chat.completions.create(
        model=MODEL, messages=history, tools=[tool], max_completion_tokens=3
    )
    assert again.choices[0].finish_reason == "length"


def test_it_streams_calls(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Trip, name="plan")
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_completion_tokens=400,
    ) as stream:
        kinds = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    assert "tool_calls.function.arguments.done" in kinds
    assert choice.message.tool_calls is not None
    assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Trip)


def test_it_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a", n=9)
    assert (caught.value.param, caught.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
