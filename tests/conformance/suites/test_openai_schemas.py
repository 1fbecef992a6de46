"""Answers and chunks are what OpenAI's published description says that they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

MODEL = os.environ["ENDPOINT_MODEL"]
CUT = Path(__file__).parents[1] / "openai_spec/cut.json"
CHAT = {"messages": [{"role": "user", "content": "Name a river."}]}
TEXT = {"prompt": "The first three planets are"}
CITY = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS = {
    "tools": [{"type": "function", "function": CITY}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 60,
}
WISHES = {
    "chat": ("/chat/completions", CHAT),
    "chat, n and log-probabilities": (
        "/chat/completions",
        {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2},
    ),
    "chat, tool": ("/chat/completions", {**CHAT, **TOOLS}),
    "chat, JSON": ("/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    "completion": ("/completions", TEXT),
    "completion, n and log-probabilities": ("/completions", {**TEXT, "n": 2, "logprobs": 2}),
}
SCHEMAS = {
    ("/chat/completions", False): "CreateChatCompletionResponse",
    ("/chat/completions", True): "CreateChatCompletionStreamResponse",
    ("/completions", False): "CreateCompletionResponse",
    ("/completions", True): "CreateCompletionResponse",
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with httpx.Client(
        base_url=os.environ["OPENAI_BASE_URL"], headers=headers, timeout=300
    ) as opened:
        yield opened


def nullable(schema: Any) -> Any:
    """The same with OpenAI's `nullable`, a word of an older OpenAPI, in the words of this one."""
    if isinstance(schema, list):
        return [nullable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: nullable(item) for name, item in schema.items()}
    return {"anyOf": [changed, {"type": "null"}]} if schema.get("nullable") is True else changed


COMPONENTS = nullable(json.loads(CUT.read_text())["components"])


def faults(value: Any, schema: str) -> list[str]:
    """What the description does not allow, a line each."""
    whole = {"$ref": f"#/components/schemas/{schema}", "components": COMPONENTS}
    found = Draft202012Validator(whole).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize("stream", [False, True], ids=["at once", "stream"])
def test_an_answer_is_as_described(client: httpx.Client, name: str, stream: bool) -> None:
    path, wish = WISHES[name]
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    body = {"model": MODEL, "temperature": 0, "max_tokens": 12, **wish, "stream": stream, **usage}
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answers = [response.text]
    if stream:
        *answers, done = [line[6:] for line in response.text.splitlines() if line]
        assert done == "[DONE]"
    for answer in map(json.loads, answers):
        if SCHEMAS[path, stream] == "CreateCompletionResponse" and stream:
            answer = _as_whole(answer)
        assert faults(answer, SCHEMAS[path, stream]) == [], answer


def _as_whole(chunk: dict[str, Any]) -> dict[str, Any]:
    """A piece of a completion, which the description has no word for, with its nulls filled in."""
    choices = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in chunk["choices"]]
    usage = {} if chunk["usage"] is None else {"usage": chunk["usage"]}
    return {**{k: v for k, v in chunk.items() if k != "usage"}, "choices": choices, **usage}


def test_models_are_as_described(client: httpx.Client) -> None:
    assert faults(client.get("/models").json(), "ListModelsResponse") == []
    assert faults(client.get(f"/models/{MODEL}").json(), "Model") == []


def test_a_fault_is_noticed() -> None:
    assert faults({"id": 1, "object": "list"}, "Model") != []
