"""Bad prompts and options are refused in one line, before any work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine import prompts
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import InvalidRequest, MTPLXError
from tests.engine.conftest import CONTEXT, PROBE, Start
from tests.engine.gates import PATIENCE_S
from tests.tiny import VOCABULARY

BAD_PROMPTS: list[tuple[Any, str]] = [
    ("", "the prompt is empty"),
    (" \n\t", "the prompt is empty"),
    ([], "the prompt is empty"),
    ((), "the prompt is empty"),
    ([0, 260], "token id 260 is not in the vocabulary: 0 to 259"),
    ([-1], "token id -1 is not in the vocabulary: 0 to 259"),
    ([1] * CONTEXT, f"the prompt has {CONTEXT} tokens; tiny-llama takes at most {CONTEXT - 1}"),
    ("a" * CONTEXT, f"takes at most {CONTEXT - 1}"),
    ([1, 2.0], "not a list that holds float"),
    ([True], "not a list that holds bool"),
    (["Hi"], "not a list that holds str"),
    ([{"role": "user", "content": "Hi"}, 3], "not a list that holds dict"),
    (b"Hi", "not bytes"),
    (None, "not NoneType"),
    (7, "not int"),
    ({"role": "user", "content": "Hi"}, "not dict"),
    ([{"role": "robot", "content": "Hi"}], "one of system, user, assistant, tool, not 'robot'"),
    ([{"content": "Hi"}], "not None"),
    ([{"role": "user"}], "content must be text, not NoneType"),
    ([{"role": "user", "content": ["Hi"]}], "content must be text, not list"),
    ("half \ud800 a pair", "half a character, '\\ud800', at position 5"),
    ([{"role": "user", "content": "\udfff"}], "half a character"),
]

BAD_OPTIONS: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("temperature", "hot"),
    ("top_k", -1),
    ("top_p", 0),
    ("top_p", 1.01),
    ("min_p", -0.5),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", 101),
    ("frequency_penalty", None),
    ("penalty_context", 0),
    ("logit_bias", {5: 101}),
    ("logit_bias", {"5": 1}),
    ("logit_bias", {VOCABULARY: 1}),
    ("json_schema", "no JSON"),
    ("json_schema", {"not": {}}),
    ("grammar", "start: ("),
    ("grammar", 5),
    ("logprobs", 21),
    ("logprobs", True),
    ("on_logprob", "print"),
    ("on_logprob", print),
    ("seed", -1),
    ("seed", 2**64),
    ("stop", [""]),
    ("stop", 5),
    ("stop", ["a", 5]),
    ("stop_token_ids", 5),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [-1]),
    ("ignore_eos", "yes"),
    ("mode", "fast"),
    ("depth", -1),
    ("depth", 17),
    ("acceptance", "rejected"),
    ("on_token", "print"),
    ("hyper", 1),
    ("timeout", -1),
    ("timeout", float("nan")),
    ("timeout", "soon"),
]


def assert_refused(engine: Engine, expected: str, prompt: Any, **options: Any) -> None:
    """The request is refused with one line, and leaves no trace."""
    before = len(engine.timeline.windows())
    with pytest.raises(InvalidRequest, match=re.escape(expected)) as caught:
        engine.generate(prompt, **options)
    assert len(str(caught.value).splitlines()) == 1
    assert len(engine.timeline.windows()) == before
    assert engine.status()["running"] == 0


@pytest.mark.parametrize(("prompt", "expected"), BAD_PROMPTS, ids=lambda v: repr(v)[:30])
def test_a_bad_prompt_is_refused(engine: Engine, prompt: Any, expected: str) -> None:
    assert_refused(engine, expected, prompt)


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS, ids=lambda v: repr(v)[:30])
def test_a_bad_option_is_refused_by_its_name(engine: Engine, name: str, value: Any) -> None:
    assert_refused(engine, name, PROBE, **{name: value})


def test_every_option_has_a_bad_value_here() -> None:
    assert set(SamplingParams.names()) <= {name for name, _ in BAD_OPTIONS}


def test_an_unknown_option_is_named(engine: Engine) -> None:
    assert_refused(engine, "unknown option 'temprature'; allowed: max_tokens", PROBE, temprature=1)


def test_bad_options_refuse_a_whole_batch(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="top_k"):
        engine.generate_batch([PROBE, PROBE], top_k=-1)
    with pytest.raises(InvalidRequest, match="prompts must be a list of prompts"):
        engine.generate_batch("Hello")
    with pytest.raises(InvalidRequest, match="top_k"):
        engine.stream(PROBE, top_k=-1)


def test_raw_and_system_must_fit_the_prompt(engine: Engine) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert_refused(engine, "raw takes text or ids, not chat messages", messages, raw=True)
    assert_refused(engine, "raw prompts take no system message", "Hi", raw=True, system="Be brief.")
    assert_refused(engine, "a system message cannot be put before token ids", PROBE, system="Hm")
    assert_refused(engine, "content must be text, not int", "Hi", system=5)


@pytest.mark.parametrize("text", ["\n", " ", "\t \n"])
def test_white_space_is_a_prompt_where_it_is_not_chat(
    start: Start, engine: Engine, other_folder: Path, text: str
) -> None:
    plain = start(other_folder)
    for handle in (
        engine.submit(text, raw=True, max_tokens=1),
        plain.submit(text, raw=True, max_tokens=1),
        plain.submit(text, max_tokens=1),
    ):
        assert handle.result(PATIENCE_S).stats.prompt_tokens == len(text)
    assert_refused(engine, "the prompt is empty", text)
    assert_refused(engine, "the prompt is empty", "", raw=True)


def test_a_chat_template_that_raises(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = "{{ raise_exception('roles must\n alternate') }}"
    monkeypatch.setattr(engine.tokenizer._tokenizer, "chat_template", strict)
    assert_refused(engine, "the model's chat template refuses: roles must alternate", "Hi")
    broken = "{% for m in messages %}"
    monkeypatch.setattr(engine.tokenizer._tokenizer, "chat_template", broken)
    assert_refused(engine, "the model's chat template refuses", "Hi")


def test_without_a_chat_template_text_is_plain(start: Start, other_folder: Path) -> None:
    engine = start(other_folder)
    handle = engine.submit("Hi", max_tokens=1)
    assert engine.tokenizer.decode(list(handle.request.prompt_ids)) == "Hi"
    assert handle.result().stats.completion_tokens == 1
    assert_refused(engine, "has no chat template", [{"role": "user", "content": "Hi"}])
    assert_refused(engine, "has no chat template, so takes no system message", "Hi", system="Hm")


def test_a_text_that_the_model_has_no_row_for(start: Start) -> None:
    engine = start()
    engine.tokenizer._tokenizer.add_tokens(["<258>", "<259>", "<260>"])
    assert_refused(engine, "token id 260 is not in the vocabulary", "Is <260> new?")


def test_the_longest_prompt_is_taken(start: Start, other_folder: Path) -> None:
    engine = start(other_folder)
    assert_refused(engine, "takes at most 511", [1] * 512)
    assert engine.generate([1] * 511, max_tokens=5).stats.completion_tokens == 1


def test_a_text_that_is_far_too_long_is_not_read_to_its_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    tokenizer, encode = engine.tokenizer._tokenizer, engine.tokenizer._tokenizer.encode

    def spy(text: str, **options: Any) -> Any:
        read.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", spy)
    monkeypatch.setattr(prompts, "CHARACTERS_A_TOKEN", 2)
    line = f"the prompt has more than {CONTEXT - 1} tokens; tiny-llama takes at most {CONTEXT - 1}"
    assert_refused(engine, line, "a" * 100 * CONTEXT)
    assert_refused(engine, line, "a" * 100 * CONTEXT, raw=True)
    assert read == [2 * (CONTEXT - 1)] * 2


def test_a_long_text_of_few_tokens_is_taken(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "CHARACTERS_A_TOKEN", 1)
    text = "<|start|>" * (CONTEXT // 4)  # more characters than tokens are allowed
    assert len(engine.intake.encoder.encode(text, raw=True)) == CONTEXT // 4


def test_refusals_are_errors_of_the_package(engine: Engine) -> None:
    with pytest.raises(MTPLXError):
        engine.submit("")
    with pytest.raises(ValueError, match="empty"):
        engine.submit("")
