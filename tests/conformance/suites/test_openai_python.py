"""OpenAI's Python client: the newest one, more widely than the tests of every day."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

MODEL = os.environ["ENDPOINT_MODEL"]
MESSAGES: Any = [{"role": "user", "content": "Name a river."}]
GREEDY: Any = {"model": MODEL, "temperature": 0, "max_completion_tokens": 12}
CITY: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASKED: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


class Answer(BaseModel):
    """What the model must fill in."""

    colour: Literal["red", "green"]
    certain: bool


@pytest.fixture(scope="module")
def client() -> openai.OpenAI:
    return openai.OpenAI(max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


def test_a_stream_says_what_an_answer_says(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_stream_helper(client: openai.OpenAI) -> None:
    # The helper raises where an answer is cut off, so this one ends by itself.
    with client.chat.completions.stream(
        messages=MESSAGES, stop=" ", **{**GREEDY, "max_completion_tokens": 60}
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=3, **GREEDY
    )
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    assert all(token.top_logprobs[0].logprob >= token.logprob for token in tokens)


def test_several_choices_and_a_seed(client: openai.OpenAI) -> None:
    wish = {**GREEDY, "temperature": 1, "seed": 3, "n": 3}
    one, two = (client.chat.completions.create(messages=MESSAGES, **wish) for _ in range(2))
    assert [c.message.content for c in one.choices] == [c.message.content for c in two.choices]
    assert [c.index for c in one.choices] == [0, 1, 2]


def test_stop_and_bias(client: openai.OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="1, 2, 3,", max_tokens=12, temperature=0)
    stopped = client.completions.create(
        model=MODEL, prompt="1, 2, 3,", max_tokens=12, temperature=0, stop=","
    )
    assert stopped.choices[0].text == free.choices[0].text.partition(",")[0]
    assert stopped.choices[0].finish_reason == "stop"


def test_completions_of_several_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["One", "Two"], max_tokens=4, temperature=0, echo=True
    )
    assert [choice.text[:3] for choice in answer.choices] == ["One", "Two"]


def test_raw_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(messages=MESSAGES, **GREEDY)
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().object == "chat.completion"


@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"extra_body": {"nonsense": 1}}, openai.BadRequestError, "nonsense"),
    ],
)
def test_errors(
    client: openai.OpenAI, changes: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as raised:
        client.chat.completions.create(**{"messages": MESSAGES, **GREEDY, **changes})
    assert raised.value.param == param


def test_other_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="a")


def test_leaving_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        messages=MESSAGES, stream=True, **{**GREEDY, "max_completion_tokens": 500}
    ) as stream:
        for _ in range(3):
            next(stream)
    assert client.chat.completions.create(messages=MESSAGES, **GREEDY).choices


async def test_many_at_once() -> None:
    async with openai.AsyncOpenAI(max_retries=0) as client:

        async def say() -> str:
            stream = await client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert len(set(await asyncio.gather(*(say() for _ in range(8))))) == 1


def test_a_schema_is_kept_to(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        messages=[{"role": "user", "content": "Which colour has grass?"}],
        response_format=Answer,
        **{**GREEDY, "max_completion_tokens": 60},
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


def test_any_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=[{"role": "user", "content": "Give me a JSON object with one number."}],
        response_format={"type": "json_object"},
        **{**GREEDY, "max_completion_tokens": 200, "frequency_penalty": 1},
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_a_tool_is_called(client: openai.OpenAI) -> None:
    wish: Any = {**GREEDY, "max_completion_tokens": 60, "parallel_tool_calls": False}
    answer = client.chat.completions.create(
        messages=ASKED, tools=[CITY], tool_choice="required", **wish
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    after = [
        *ASKED,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    said = client.chat.completions.create(messages=after, tools=[CITY], tool_choice="none", **wish)
    assert said.choices[0].message.tool_calls is None
    assert said.choices[0].message.content


def test_a_tool_is_called_in_a_stream(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    with client.chat.completions.stream(
        messages=ASKED,
        tools=[CITY],
        tool_choice=named,
        **{**GREEDY, "max_completion_tokens": 60},
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
