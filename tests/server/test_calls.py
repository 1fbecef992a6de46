"""Calls read out of an answer's text: in each family's way, whole or in pieces."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from mtplx_kernel.server.calls import CallReader, Read
from mtplx_kernel.server.tools import PLAIN, CallStyle, ToolUse

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
TWO = ONE.replace("Rome", "Oslo")
FAMILIES = {
    "json_tools": ONE,
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 2}',
    "glm47": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "longcat": '<longcat_tool_call>{"name": "weather", "arguments": '
    '{"city": "Rome", "days": 2}}</longcat_tool_call>',
    "pythonic": "<|tool_call_start|>[weather(city='Rome', days=2)]<|tool_call_end|>",
}


def use(style: CallStyle = PLAIN, *, single: bool = False, offered: bool = True) -> ToolUse:
    return ToolUse(style, [WEATHER] if offered else [], None, single)


def style_of(family: str) -> CallStyle:
    found = importlib.import_module(f"mlx_lm.tool_parsers.{family}")
    return CallStyle(found.tool_call_start, found.tool_call_end, found.parse_tool_call, True)


def read(used: ToolUse, text: str, pieces: int = 1) -> Read:
    """What a text comes to, given in pieces of about equal length."""
    reader, size, found = CallReader(used), max(1, len(text) // pieces), Read()
    for at in range(0, len(text), size):
        found += reader.add(text[at : at + size])
    found += reader.end()
    assert reader.count == len(found.calls)
    return found


def called(found: Read) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_call_is_read(family: str, pieces: int) -> None:
    for before in ("", "I look. "):
        found = read(use(style_of(family)), before + FAMILIES[family], pieces)
        assert called(found) == [("weather", {"city": "Rome", "days": 2})]
        assert found.content == before.rstrip()


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_several_calls_have_ids_of_their_own(pieces: int) -> None:
    found = read(use(), f"\n{ONE}\n{TWO}\n", pieces)
    assert [city["city"] for _, city in called(found)] == ["Rome", "Oslo"]
    assert found.content == ""
    first, second = (call.id for call in found.calls)
    assert first != second
    assert first.startswith("call_")
    assert len(first) == 29


def test_of_several_one_may_count() -> None:
    assert [c["city"] for _, c in called(read(use(single=True), f"{ONE}\n{TWO}"))] == ["Rome"]


@pytest.mark.parametrize("pieces", [1, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "  ",
        "<tool_",
        "<tool_call>\nno JSON\n</tool_call> and on",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": 5}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"days": NaN}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": "Ro',
        "a <b> c <tool_call",
    ],
)
def test_what_is_no_call_stays_text(text: str, pieces: int) -> None:
    found = read(use(), text, pieces)
    assert found == Read(text)


def test_text_comes_as_soon_as_it_can_be_no_call() -> None:
    reader = CallReader(use())
    said = [reader.add(piece).content for piece in ("Look: <", "to", "p", "> ", "<tool_call")]
    assert said == ["Look:", "", " <top", ">", ""]
    assert reader.end().content == " <tool_call"


def test_text_around_calls_is_kept() -> None:
    found = read(use(), f"Before.\n{ONE}\nAfter.", 5)
    assert found.content == "Before.\nAfter."
    assert len(found.calls) == 1


def test_without_functions_all_is_text() -> None:
    assert read(use(offered=False), ONE, 9) == Read(ONE)
