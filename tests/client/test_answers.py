"""An endpoint's answers as records, whole or put together from a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mtplx_kernel.client.answers import Choice, Completion, Usage, completion_of
from mtplx_kernel.client.chunks import StreamedAnswer
from mtplx_kernel.errors import EndpointError
from tests.client.replies import chat, completion, delta, piece


def streamed(*chunks: object) -> tuple[list[str], StreamedAnswer]:
    answer = StreamedAnswer()
    return [answer.add(json.dumps(chunk).encode()) for chunk in chunks], answer


def test_a_completion() -> None:
    raw = completion("a river")
    assert completion_of(raw) == Completion(
        text="a river",
        finish_reason="stop",
        usage=Usage(prompt_tokens=5, completion_tokens=2, total_tokens=7, cached_tokens=4),
        model="tiny",
        choices=(Choice(index=0, text="a river", finish_reason="stop"),),
        raw=raw,
    )


def test_a_chat_answer() -> None:
    found = completion_of(chat("hello"))
    assert (found.text, found.finish_reason) == ("hello", "length")


def test_choices_come_in_order_and_usage_may_be_missing() -> None:
    logprobs = {"tokens": ["b"], "token_logprobs": [-0.5]}
    raw: dict[str, Any] = {
        "choices": [
            {"index": 1, "text": "b", "finish_reason": "length", "logprobs": logprobs},
            {"index": 0, "text": "a", "finish_reason": "stop"},
        ]
    }
    found = completion_of(raw)
    assert [choice.text for choice in found.choices] == ["a", "b"]
    assert [choice.logprobs for choice in found.choices] == [None, logprobs]
    assert (found.text, found.usage, found.model) == ("a", None, None)


def test_a_message_without_text_has_none() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "call-1"}]}
    found = completion_of({"choices": [{"index": 0, "message": message}]})
    assert found.text == ""
    assert found.raw["choices"][0]["message"]["tool_calls"] == [{"id": "call-1"}]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({}, "has no choices"),
        ({"choices": []}, "has no choices"),
        ({"choices": {"index": 0}}, "has no choices"),
        ({"choices": ["text"]}, "has a choice without an index"),
        ({"choices": [{"text": "a"}]}, "has a choice without an index"),
    ],
)
def test_what_is_no_answer(raw: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        completion_of(raw)


def test_chunks_of_a_completion_make_the_answer() -> None:
    pieces, answer = streamed(
        piece("a "), piece("river"), piece("", "stop"), completion("", choices=[])
    )
    assert pieces == ["a ", "river", "", ""]
    assert answer.completion == completion_of(completion("a river"))


def test_chunks_of_a_chat_answer_make_the_answer() -> None:
    pieces, answer = streamed(
        delta(role="assistant", content=""),
        delta(content="hel"),
        delta(content="lo"),
        delta("length"),
        completion("", object="chat.completion.chunk", choices=[]),
    )
    assert pieces == ["", "hel", "lo", "", ""]
    assert answer.completion == completion_of(chat("hello"))


def test_log_probabilities_and_tool_calls_of_chunks_are_put_together() -> None:
    def tokens(*names: str) -> dict[str, Any]:
        content = [{"token": name, "logprob": -1.5, "top_logprobs": []} for name in names]
        return {"content": content}

    first, second = delta(content="a"), delta(content="b")
    first["choices"][0]["logprobs"] = tokens("a")
    second["choices"][0]["logprobs"] = tokens("b", "")
    call = {"index": 0, "id": "call-1", "type": "function"}
    begin = {**call, "function": {"name": "add", "arguments": '{"a"'}}
    go_on = {"index": 0, "function": {"arguments": ": 1}"}}
    other = {"index": 1, "id": "call-2", "function": {"name": "no", "arguments": "{}"}}
    _, answer = streamed(
        first,
        second,
        delta(tool_calls=[begin]),
        delta(tool_calls=[go_on, other]),
        delta("tool_calls"),
    )
    (choice,) = answer.completion.choices
    assert choice.logprobs == tokens("a", "b", "")
    assert answer.completion.raw["choices"][0]["message"]["tool_calls"] == [
        {**call, "function": {"name": "add", "arguments": '{"a": 1}'}},
        other,
    ]


def test_a_stream_is_finished_when_all_its_choices_are() -> None:
    _, answer = streamed()
    assert not answer.finished
    assert (answer.completion.text, answer.completion.choices) == ("", ())
    pieces, answer = streamed(piece("a"), piece("b", index=1), piece("", "stop"))
    assert pieces == ["a", "", ""]
    assert not answer.finished
    answer.add(json.dumps(piece("c", "length", index=1)).encode())
    assert answer.finished
    assert [choice.text for choice in answer.completion.choices] == ["a", "bc"]


def test_an_error_in_a_stream_keeps_what_had_come() -> None:
    _, answer = streamed(piece("a ri"))
    error = {"message": "the row\nfailed", "type": "server_error", "param": None, "code": 500}
    with pytest.raises(EndpointError) as caught:
        answer.add(json.dumps({"error": error}).encode())
    assert str(caught.value) == "the stream ends with an error: the row failed"
    assert (caught.value.status, caught.value.type) == (None, "server_error")
    assert (caught.value.param, caught.value.code) == (None, "500")
    assert caught.value.completion == answer.completion
    assert answer.completion.text == "a ri"


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[]", b'{"id": 1}', b'{"choices": [1]}'])
def test_what_is_no_chunk(data: bytes) -> None:
    with pytest.raises(EndpointError, match="holds something that is no chunk of an answer"):
        StreamedAnswer().add(data)


def test_long_contents_are_not_shown_with_a_record() -> None:
    shown = repr(completion_of(completion("a river")))
    assert shown.startswith("Completion(text='a river', finish_reason='stop', usage=Usage(")
    assert "raw" not in shown
