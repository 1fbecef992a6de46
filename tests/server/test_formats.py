"""response_format: the answer is JSON that fits, whatever the model would have said."""

from __future__ import annotations

import json
import threading
from typing import Any

import jsonschema
import pytest

from mtplx_kernel.engine.constraints import Constraints
from tests.engine.gates import PATIENCE_S
from tests.server.site import CHAT, HYPER_CHAT, Site, reason_of, text_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def fitting(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


@pytest.mark.parametrize("path", [CHAT, HYPER_CHAT])
@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": False}], ids=str)
def test_an_answer_fits_its_schema(site: Site, path: str, strict: dict[str, Any]) -> None:
    asked = {"response_format": fitting(SCHEMA, **strict), "max_tokens": 200, "n": 2}
    answer = site.ask(path, temperature=1.2, seed=4, **asked)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    chunks = site.stream(path, temperature=1.2, seed=4, **asked)
    for choice in answer["choices"]:
        assert text_of(chunks, choice["index"]) == choice["message"]["content"]
        assert reason_of(chunks, choice["index"]) == "stop"


def test_ids_do_not_depend_on_the_mode(site: Site) -> None:
    asked = {"response_format": fitting(SCHEMA), "max_tokens": 200, "temperature": 1, "seed": 9}
    ar, mtp = (
        site.ask(CHAT, generation_mode=mode, **asked)["choices"][0]["message"]["content"]
        for mode in ("ar", "mtp")
    )
    assert ar == mtp


def test_json_object_is_any_object(site: Site) -> None:
    bias = {str(ord("}") - 33): 9.0}  # the tiny model would write on for long
    answer = site.ask(
        CHAT, response_format={"type": "json_object"}, logit_bias=bias, max_tokens=300
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_a_format_without_a_schema_is_an_object(site: Site) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "it"}}
    text = site.ask(CHAT, response_format=form, max_tokens=1)["choices"][0]["message"]["content"]
    assert text == "{"


def test_text_is_as_without_a_format(site: Site) -> None:
    plain, text = (
        site.ask(CHAT, **fields)["choices"]
        for fields in ({}, {"response_format": {"type": "text"}})
    )
    assert plain == text


def test_a_limit_cuts_it(site: Site) -> None:
    (choice,) = site.ask(CHAT, response_format=fitting(SCHEMA), max_tokens=4)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


def test_a_stop_text_ends_it(site: Site) -> None:
    fields = {"response_format": fitting({"const": "a, b"}), "stop": ", "}
    (choice,) = site.ask(CHAT, **fields)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('"a', "stop")


def test_logprobs_are_among_what_may_come(site: Site) -> None:
    (choice,) = site.ask(
        CHAT, response_format=fitting({"const": 7}), logprobs=True, top_logprobs=3
    )["choices"]
    (token,) = choice["logprobs"]["content"]
    assert (token["token"], token["logprob"], len(token["top_logprobs"])) == ("7", 0, 1)


def deep(levels: int) -> Any:
    return {"items": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"not": {}}, 'cannot be used: Unimplemented keys: ["not"]'),
        ({"type": "strin"}, "cannot be used: Invalid type: strin"),
        ({"$ref": "http://127.0.0.1:1/schema"}, "cannot be used: "),
        ({"enum": ["x" * 70_000]}, "must be an object, or its JSON text, of at most 65536"),
        ({"type": "object", "properties": {str(i): {} for i in range(5000)}}, "too big"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_any_work(
    site: Site, schema: Any, line: str
) -> None:
    before = len(site.engine.timeline.windows())
    for stream in (False, True):
        status, error = site.refusal(CHAT, response_format=fitting(schema), stream=stream)
        assert (status, error["param"], error["code"]) == (400, "response_format", "invalid_value")
        assert error["message"].startswith("response_format ")
        assert line in error["message"]
        assert len(error["message"]) < 400
    assert len(site.engine.timeline.windows()) == before


def test_a_schema_that_is_nested_too_deep_is_refused(site: Site) -> None:
    status, error = site.refusal(CHAT, response_format=fitting(deep(120)))
    assert (status, error["param"]) == (400, "response_format.json_schema.schema")
    assert error["message"] == "a schema must be nested at most 100 deep"


def test_another_wrong_option_is_named(site: Site) -> None:
    fields = {"response_format": fitting(SCHEMA), "logit_bias": {"260": 1}}
    status, error = site.refusal(CHAT, **fields)
    assert (status, error["param"]) == (400, "logit_bias")
    status, error = site.refusal(CHAT, response_format=fitting(SCHEMA), ignore_eos=True)
    assert (status, error["param"]) == (400, "ignore_eos")


def test_compiling_holds_up_nobody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the event loop, nor other requests, nor those that run."""
    begun, go_on = threading.Event(), threading.Event()
    real = Constraints._compile

    def slow(self: Constraints, *form: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return real(self, *form)

    monkeypatch.setattr(Constraints, "_compile", slow)
    found: list[Any] = []
    form = fitting({"const": "slow"})
    thread = threading.Thread(
        target=lambda: found.append(site.ask(CHAT, response_format=form)), daemon=True
    )
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        assert site.client.get("/health").status_code == 200
        assert site.ask(CHAT)["choices"][0]["finish_reason"] == "length"
        assert not found
    finally:
        go_on.set()
        thread.join(PATIENCE_S)
    assert found[0]["choices"][0]["message"]["content"] == '"slow"'
