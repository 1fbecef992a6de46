"""Completions: text or ids in, one or several, with or without the prompt in front."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mtplx_kernel.engine.prompts import PromptEncoder
from tests.server.site import MODEL, TEXT, Site, reason_of, text_of


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def encoded(site: Site, text: str) -> list[int]:
    ids: list[int] = site.engine.tokenizer.encode(text)
    return ids


def test_an_answer_is_openais_object(site: Site) -> None:
    hello = encoded(site, "Hello")
    answer = site.ask(TEXT, prompt=hello)
    expected = site.engine.generate(hello, max_tokens=12)
    assert re.fullmatch(r"cmpl-[0-9a-f]{24}", answer["id"])
    assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
    assert answer["choices"] == [
        {"index": 0, "text": expected.text, "logprobs": None, "finish_reason": "length"}
    ]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 12)


def test_text_is_taken_without_a_template(site: Site) -> None:
    ids = encoded(site, "Hello")
    assert len(ids) == 5
    assert texts(site.ask(TEXT, prompt="Hello")) == texts(site.ask(TEXT, prompt=ids))


def test_without_a_limit_it_is_16_tokens(site: Site) -> None:
    answer = site.ask(TEXT, max_tokens=None, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16


def test_a_stream_says_what_an_answer_says(site: Site) -> None:
    fields = {"temperature": 1.2, "seed": 4, "stream_options": {"include_usage": True}}
    answer = site.ask(TEXT, temperature=1.2, seed=4)
    *chunks, last = site.stream(TEXT, **fields)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert (text_of(chunks), reason_of(chunks)) == (texts(answer)[0], "length")
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == answer["usage"]["total_tokens"]


def test_several_prompts_have_several_answers_each(site: Site) -> None:
    fields = {"prompt": ["Hello", "World"], "n": 2, "temperature": 1.5, "seed": 9}
    answer, chunks = site.ask(TEXT, **fields), site.stream(TEXT, **fields)
    alone = [
        site.engine.generate(prompt, raw=True, max_tokens=12, temperature=1.5, seed=seed).text
        for prompt in ("Hello", "World")
        for seed in (9, 10)
    ]
    assert texts(answer) == alone
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [text_of(chunks, index) for index in range(4)] == alone
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (10, 48)
    ids = site.ask(
        TEXT, **{**fields, "prompt": [encoded(site, text) for text in ("Hello", "World")]}
    )
    assert texts(ids) == alone


def test_choices_of_one_prompt_have_it_read_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    encode = PromptEncoder.encode

    def spy(self: PromptEncoder, prompt: Any, **options: Any) -> tuple[int, ...]:
        if isinstance(prompt, str):
            read.append(prompt)
        return encode(self, prompt, **options)

    monkeypatch.setattr(PromptEncoder, "encode", spy)
    several = site.ask(TEXT, prompt=["One", "Two"], n=3)["choices"]
    assert read == ["One", "Two"]
    monkeypatch.undo()
    singly = [site.ask(TEXT, prompt=prompt)["choices"][0]["text"] for prompt in ("One", "Two")]
    assert [choice["text"] for choice in several] == [singly[0]] * 3 + [singly[1]] * 3


def test_echo_puts_the_prompt_first(site: Site) -> None:
    plain = texts(site.ask(TEXT))[0]
    for prompt in ("Hello", encoded(site, "Hello")):
        assert texts(site.ask(TEXT, prompt=prompt, echo=True)) == [f"Hello{plain}"]
        chunks = site.stream(TEXT, prompt=prompt, echo=True)
        assert chunks[0]["choices"][0]["text"] == "Hello"
        assert text_of(chunks) == f"Hello{plain}"


def test_best_of_as_many_as_n_is_no_more_than_n(site: Site) -> None:
    fields = {"temperature": 1.5, "seed": 1, "n": 2}
    assert texts(site.ask(TEXT, best_of=2, **fields)) == texts(site.ask(TEXT, **fields))
