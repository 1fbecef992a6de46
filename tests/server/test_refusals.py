"""Whatever is wrong is refused, in OpenAI's shape, with its parameter; nothing is run for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from mtplx_kernel.server.body import MOST_FIELDS
from mtplx_kernel.server.schema import ChatRequest, CompletionRequest
from tests.server.conftest import CONTEXT
from tests.server.site import CHAT, HELLO, HYPER_CHAT, HYPER_TEXT, MODEL, TEXT, Site, error_of

BOTH: list[tuple[str, list[Any]]] = [
    ("model", ["", 5, None, "a" * 5000]),
    ("max_tokens", [0, -1, 1.5, "9", True, CONTEXT + 1, 10**30]),
    ("temperature", [-0.1, 2.1, "1", True, [1]]),
    ("top_p", [-0.1, 1.1, "1", True]),
    ("n", [0, 9, 1.5, "1", True]),
    ("stop", ["", [], [""], ["a"] * 5, 5, {"a": 1}, [5]]),
    ("seed", [2**64, -(2**63) - 1, 1.5, "1", True]),
    ("presence_penalty", [-2.1, 2.1, "1", False]),
    ("frequency_penalty", [-2.1, 2.1, "1", False]),
    ("logit_bias", [[], {"a": 1}, {"5": 101}, {"5": "1"}, {"5": True}, {"-1": 1}, {"260": 1}]),
    ("logit_bias", [{"05": 1}, {"5 ": 1}, {"": 1}]),
    ("logit_bias", [{str(token): 1 for token in range(301)}]),
    ("stream", ["true", 1]),
    ("stream_options", [{"include_usage": True}, "x"]),
    ("user", [5]),
    ("generation_mode", ["fast", 1]),
    ("depth", [-1, 17, 1.0, "1", True]),
    ("acceptance", ["accepted", 1]),
    ("priority", [0, 101, "1", True]),
    ("min_p", [-0.1, 1.1, "1"]),
    ("top_k", [-1, 1.5, "1", True]),
    ("ignore_eos", ["yes", 1]),
    ("include_stats", ["yes", 1]),
]
ONLY_CHAT: list[tuple[str, list[Any]]] = [
    ("messages", [[], "Hello", None, {}, 5]),
    ("max_completion_tokens", [0, 1.5]),
    ("logprobs", [1, "true"]),
    ("top_logprobs", [3]),
    ("response_format", ["text", 5]),
    ("modalities", [[], 5]),
    ("store", ["yes"]),
    ("metadata", ["a", []]),
    ("service_tier", ["fastest"]),
    ("prompt_cache_key", [5]),
    ("prompt_cache_retention", [5]),
    ("safety_identifier", [5]),
    ("tools", [[], 5, ["f"], [{"type": "function"}], [{"type": "custom", "custom": {}}]]),
    ("tools", [[{"type": "function", "function": {"name": "a b"}}]]),
    ("tools", [[{"type": "function", "function": {"name": "f"}}] * 2]),
    ("tool_choice", ["none", "sometimes", 5, {}, {"type": "function", "function": {"name": 5}}]),
    ("parallel_tool_calls", [True, "yes"]),
    ("functions", [[]]),
    ("function_call", ["none"]),
    ("audio", [{}]),
    ("prediction", [{}]),
    ("reasoning_effort", ["low"]),
    ("verbosity", ["low"]),
    ("web_search_options", [{}]),
    ("suffix", ["x"]),
    ("echo", [True]),
]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
ONLY_TEXT: list[tuple[str, list[Any]]] = [
    ("prompt", ["", [], [[]], [""], 5, {}, ["a", 5], [1, [2]], [260], [-1], [1.5], [True], None]),
    ("prompt", [["a"] * 33, "a" * CONTEXT, [10**40]]),
    ("best_of", [2, 0, "1"]),
    ("echo", ["yes"]),
    ("logprobs", [6, -1, True]),
    ("suffix", ["x"]),
    ("messages", [HELLO]),
]


def cases() -> Iterator[Any]:
    for path, own in ((CHAT, ONLY_CHAT), (TEXT, ONLY_TEXT)):
        for param, values in BOTH + own:
            for value in values:
                yield pytest.param(path, param, value, id=f"{path[4:8]}-{param}-{value!r:.20}")


@pytest.mark.parametrize(("path", "param", "value"), list(cases()))
def test_a_wrong_value_is_refused_by_its_name(
    site: Site, path: str, param: str, value: Any
) -> None:
    before = len(site.engine.timeline.windows())
    status, error = site.refusal(path, **{param: value})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["code"]
    assert len(error["message"]) < 300
    assert len(site.engine.timeline.windows()) == before


def test_every_field_has_a_wrong_value_here() -> None:
    for record, lists in ((ChatRequest, BOTH + ONLY_CHAT), (CompletionRequest, BOTH + ONLY_TEXT)):
        assert set(record.model_fields) <= {name for name, _ in lists}


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("Hello", "messages[0]", "invalid_type"),
        ({"content": "a"}, "messages[0].role", "missing_required_parameter"),
        ({"role": "user"}, "messages[0].content", "missing_required_parameter"),
        ({"role": "king", "content": "a"}, "messages[0].role", "invalid_value"),
        ({"role": "tool", "content": "a"}, "messages[0].tool_call_id", "invalid_value"),
        ({"role": "tool", "content": "a", "tool_call_id": "b"}, "messages", "invalid_value"),
        (
            {"role": "user", "content": "a", "tool_call_id": "b"},
            "messages[0].tool_call_id",
            "invalid_value",
        ),
        (
            {"role": "user", "content": "a", "tool_calls": [CALL]},
            "messages[0].tool_calls",
            "invalid_value",
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "id": ""}]},
            "messages[0].tool_calls[0].id",
            "invalid_value",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[]"}}],
            },
            "messages[0].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        ({"role": "assistant", "content": None}, "messages[0].content", "invalid_value"),
        ({"role": "user", "content": None}, "messages[0].content", "invalid_value"),
        ({"role": "user", "content": []}, "messages[0].content", "invalid_value"),
        ({"role": "user", "content": ["a"]}, "messages[0].content", "invalid_value"),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "messages[0].content",
            "invalid_value",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content",
            "unsupported_content",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            "messages[0].content",
            "unsupported_content",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]},
            "messages[0].content",
            "unknown_parameter",
        ),
        ({"role": "user", "content": "a", "name": "a b"}, "messages[0].name", "invalid_value"),
        ({"role": "user", "content": "a", "mood": 1}, "messages[0].mood", "unknown_parameter"),
        (
            {"role": "assistant", "content": "a", "tool_calls": []},
            "messages[0].tool_calls",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(
    site: Site, message: Any, param: str, code: str
) -> None:
    status, error = site.refusal(CHAT, messages=[message])
    assert (status, error["param"]) == (400, param)
    assert error["code"] in (code, "invalid_type")


@pytest.mark.parametrize(
    ("path", "fields", "line"),
    [
        (CHAT, {"wings": 2}, "unknown field 'wings'"),
        (CHAT, {"n": 9}, "n should be less than or equal to 8, not 9"),
        (CHAT, {"generation_mode": "x"}, "generation_mode should be 'mtp' or 'ar', not 'x'"),
        (CHAT, {"stop": [""]}, "stop must be a text, or 1 to 4 texts, none of them empty"),
        (CHAT, {"max_tokens": 3, "max_completion_tokens": 3}, "cannot both be given"),
        (CHAT, {"top_logprobs": 3}, "only where logprobs is true"),
        (CHAT, {"tools": []}, "tools must be 1 to 128 functions"),
        (CHAT, {"functions": []}, "functions is OpenAI's older name: use tools"),
        (CHAT, {"tool_choice": "auto"}, "tool_choice is allowed only where tools are given"),
        (
            CHAT,
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice must name one of f",
        ),
        (CHAT, {"response_format": {"type": "json_schema"}}, "json_schema is to be given with"),
        (TEXT, {"echo": True, "logprobs": 1}, "not with echo"),
        (TEXT, {"prompt": [300]}, "token id 300 is not in the vocabulary: 0 to 259"),
        (TEXT, {"prompt": [300], "echo": True}, "token id 300 is not in the vocabulary: 0 to 259"),
        (CHAT, {"metadata": {"a\nb": 1}}, "metadata.a b should be a valid string, not 1"),
        (HYPER_CHAT, {"priority": 2}, "so it takes no priority"),
        (HYPER_TEXT, {"width": 2}, "unknown field 'width'"),
    ],
)
def test_a_refusal_says_what_is_wrong(
    site: Site, path: str, fields: dict[str, Any], line: str
) -> None:
    status, error = site.refusal(path, **fields)
    assert status == 400
    assert line in error["message"]


def test_a_prompt_that_is_too_long_has_openais_code(site: Site) -> None:
    for path, fields, param in (
        (TEXT, {"prompt": "a" * CONTEXT}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * CONTEXT}]}, "messages"),
    ):
        status, error = site.refusal(path, **fields)
        assert (status, error["param"]) == (400, param)
        assert error["code"] == "context_length_exceeded"


def test_an_unknown_model_is_not_found(site: Site) -> None:
    status, error = site.refusal(CHAT, model="gpt-9")
    assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert error["message"] == f"the model 'gpt-9' is not served here; allowed: {MODEL}"
    status, error = error_of(site.client.get("/v1/models/gpt-9"))
    assert (status, error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "\xff"}', "byte 11 is no UTF-8"),
        (b'{"temperature": NaN}', "NaN is no JSON value"),
        (b'{"temperature": -Infinity}', "-Infinity is no JSON value"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"model": "\\ud800"}', "half a character"),
        (b'{"model": "a", "messages": [{"role": "user", "content": "\\uDC00"}]}', "half a"),
        (b'{"model": "a", "n": 1, "model": "b"}', "'model' comes twice in an object"),
        (b'{"metadata": {"a": "b", "a": "b"}}', "'a' comes twice in an object"),
        (b"[]", "the body must be a JSON object, not []"),
        (b"null", "the body must be a JSON object, not None"),
        (b'"text"', "the body must be a JSON object, not 'text'"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(site: Site, content: bytes, line: str) -> None:
    for path in (CHAT, TEXT):
        headers = {"content-type": "application/json"}
        status, error = error_of(site.client.post(path, content=content, headers=headers))
        assert status == 400
        assert line in error["message"]


def test_numbers_beyond_all_bounds_are_refused(site: Site) -> None:
    wide = json.dumps({"model": MODEL, "messages": HELLO}).removesuffix("}")
    for number in ("1e999", "-1e999", "1" + "0" * 400):
        content = f'{wide}, "temperature": {number}}}'
        headers = {"content-type": "application/json"}
        status, error = error_of(site.client.post(CHAT, content=content, headers=headers))
        assert (status, error["param"]) == (400, "temperature")


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json; Charset=latin-1"},
        {"content-type": "application/json; version=1; charset=koi8-r"},
        {"content-type": "application/json, text/plain"},
        {},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
    ids=str,
)
def test_another_kind_of_body_is_refused(site: Site, headers: dict[str, str]) -> None:
    status, error = error_of(site.client.post(CHAT, content=b"{}", headers=headers))
    assert (status, error["code"]) == (415, "unsupported_media_type")


def test_a_charset_may_be_named(site: Site) -> None:
    content = json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 1})
    for kind in ('Application/JSON; charset="UTF-8"', "application/json;charset=utf-8; version=1"):
        response = site.client.post(CHAT, content=content, headers={"content-type": kind})
        assert response.status_code == 200


def test_objects_have_a_bound_so_that_nobody_waits_for_their_complaints(site: Site) -> None:
    fields = {f"f{n}": 1 for n in range(MOST_FIELDS + 1)}
    for more in (fields, {"messages": [fields]}, {"metadata": fields}):
        status, error = site.refusal(CHAT, **more)
        assert (status, error["code"]) == (400, "invalid_value")
        assert "an object of the body may have 5000 fields" in error["message"]
    # Of many messages that are wrong the first is looked at alone.
    wrong = [{"role": "king"}] * 3
    with pytest.raises(ValidationError) as complaint:
        ChatRequest.model_validate({"model": MODEL, "messages": wrong})
    assert {each["loc"][1] for each in complaint.value.errors()} == {0}


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/embeddings", f"{CHAT}/"])
def test_an_unknown_path_is_not_found(site: Site, path: str) -> None:
    status, error = error_of(site.client.post(path, json={}))
    assert (status, error["code"]) == (404, "unknown_url")
    assert path in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, "POST"), ("DELETE", TEXT, "POST"), ("POST", "/v1/models", "GET")],
)
def test_another_method_is_not_allowed(site: Site, method: str, path: str, allowed: str) -> None:
    response = site.client.request(method, path)
    assert error_of(response)[0] == 405
    assert response.headers["allow"] == allowed


def test_a_fault_of_ours_is_an_error_like_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(site.engine, "submit", broken)
    status, error = site.refusal(CHAT)
    assert (status, error["type"], error["code"]) == (500, "server_error", "internal_error")
    assert "secret" not in error["message"]
