"""Tools: told to the model, called in its own way, and held to their schemas where asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken, Tokenizer

import mtplx_kernel as mk
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.constraints import Constraints
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.server.schema import ChatRequest
from mtplx_kernel.server.tools import ToolUse
from tests.server.site import CHAT, HELLO, HYPER_CHAT, MODEL, Site, reason_of, text_of
from tests.tiny import write

ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 4},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": ARGUMENTS},
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
SCHEMAS = {"weather": ARGUMENTS, "now": {"type": "object", "maxProperties": 0}}
NAMED = {"type": "function", "function": {"name": "weather"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
NATIVE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for tool_call in m.tool_calls or [] %}<tool_call>{{ tool_call.function.name }}: "
    "{{ tool_call.function.arguments.city }}{# tool_call.name #}</tool_call>{% endfor %}"
    "{% if m['role'] == 'tool' %} of {{ m['name'] }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
Say = Callable[[str], None]


@pytest.fixture
def say(site: Site, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Have the model answer with just this text."""
    real = site.engine.submit

    def to(text: str) -> None:
        def submit(prompt: Any, **options: Any) -> Any:
            return real(prompt, **{**options, "grammar": f"start: {json.dumps(text)}"})

        monkeypatch.setattr(site.engine, "submit", submit)

    return to


def calls_of(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """The calls of a choice, as the deltas tell of them."""
    deltas = [
        c["delta"].get("tool_calls", [])
        for chunk in chunks
        for c in chunk["choices"]
        if c["index"] == index
    ]
    found = [call for each in deltas for call in each]
    assert [call.pop("index") for call in found] == list(range(len(found)))
    return found


def check(calls: list[dict[str, Any]]) -> list[str]:
    """That calls are well formed and fit; the functions' names."""
    assert len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        assert (set(call), call["type"]) == ({"id", "type", "function"}, "function")
        assert set(call["function"]) == {"name", "arguments"}
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, SCHEMAS[call["function"]["name"]])
    return [call["function"]["name"] for call in calls]


@pytest.mark.parametrize("path", [CHAT, HYPER_CHAT])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_must_come_fits(site: Site, path: str, choice: Any) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "n": 2}
    fields |= {"max_tokens": 300, "temperature": 1.3, "seed": 5}
    answer = site.ask(path, **fields)
    chunks = site.stream(path, **fields)
    for each in answer["choices"]:
        message = each["message"]
        assert (message["content"], each["finish_reason"]) == (None, "tool_calls")
        names = check(message["tool_calls"])
        assert len(names) == 1
        if choice is NAMED:
            assert names == ["weather"]
        streamed = calls_of(chunks, each["index"])
        assert [c["function"] for c in streamed] == [c["function"] for c in message["tool_calls"]]
        assert (text_of(chunks, each["index"]), reason_of(chunks, each["index"])) == (
            "",
            "tool_calls",
        )


def test_several_calls_may_come(site: Site) -> None:
    fields = {"tools": [NOW], "tool_choice": "required", "max_tokens": 200}
    (choice,) = site.ask(CHAT, logit_bias={"198": 20}, **fields)["choices"]  # a new line
    assert len(check(choice["message"]["tool_calls"])) > 1


@pytest.mark.parametrize("parallel", [None, True, False])
def test_what_the_model_says_by_itself_is_read(site: Site, say: Say, parallel: Any) -> None:
    say(f"I look.\n{CALL}\n{CALL.replace('Rome', 'Oslo')}")
    fields = {"tools": TOOLS, "parallel_tool_calls": parallel, "max_tokens": 300}
    (choice,) = site.ask(CHAT, **fields)["choices"]
    chunks = site.stream(CHAT, **fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("I look.", "tool_calls")
    assert check(choice["message"]["tool_calls"]) == ["weather"] * (1 if parallel is False else 2)
    assert (text_of(chunks), reason_of(chunks)) == ("I look.", "tool_calls")
    assert len(calls_of(chunks)) == len(choice["message"]["tool_calls"])


def test_text_alone_ends_as_ever(site: Site, say: Say) -> None:
    say("No call.")
    (choice,) = site.ask(CHAT, tools=TOOLS, tool_choice="auto", max_tokens=300)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("No call.", "stop")
    assert "tool_calls" not in choice["message"]
    chunks = site.stream(CHAT, tools=TOOLS, max_tokens=300)
    assert (text_of(chunks), reason_of(chunks), calls_of(chunks)) == ("No call.", "stop", [])


def test_none_tells_of_none(site: Site, say: Say) -> None:
    plain = site.ask(CHAT)
    none = site.ask(CHAT, tools=TOOLS, tool_choice="none")
    assert none["choices"] == plain["choices"]
    assert none["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    say(CALL)
    (choice,) = site.ask(CHAT, tools=TOOLS, tool_choice="none", max_tokens=300)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


def test_a_call_that_is_cut_is_text(site: Site) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 20}
    (choice,) = site.ask(CHAT, **fields)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == '<tool_call>\n{"name":'[:20]
    chunks = site.stream(CHAT, **fields)
    assert text_of(chunks) == choice["message"]["content"]


def test_logprobs_tell_of_a_calls_tokens(site: Site) -> None:
    fields = {"tools": [NOW], "tool_choice": NOW, "max_tokens": 200, "logprobs": True}
    (choice,) = site.ask(CHAT, **fields)["choices"]
    said = "".join(token["token"] for token in choice["logprobs"]["content"])
    assert "".join(said.split()) == '<tool_call>{"name":"now","arguments":{}}</tool_call>'
    chunks = site.stream(CHAT, **fields)
    told = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert "".join(t["token"] for each in told for t in each["content"]) == said


@pytest.mark.parametrize("wanted", [{"strict": True}, {"choice": "required"}])
def test_a_schema_that_cannot_be_used_is_refused(site: Site, wanted: dict[str, Any]) -> None:
    before = len(site.engine.timeline.windows())
    function = {"name": "f", "parameters": {"not": {}}, "strict": wanted.get("strict")}
    status, error = site.refusal(
        CHAT,
        tools=[WEATHER, {"type": "function", "function": function}],
        tool_choice=wanted.get("choice"),
    )
    assert (status, error["param"], error["code"]) == (400, "tools", "invalid_value")
    assert error["message"].startswith("tools cannot be used: ")
    assert "Unimplemented keys" in error["message"]
    assert len(site.engine.timeline.windows()) == before


def test_what_nobody_holds_an_answer_to_may_be_any_schema(site: Site) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    assert site.ask(CHAT, tools=[tool])["choices"][0]["finish_reason"] == "length"


def test_a_schema_and_tools_are_one_or_the_other(site: Site) -> None:
    schema = {"type": "integer", "minimum": 0, "maximum": 9}
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    fields = {"tools": [NOW], "response_format": form, "max_tokens": 200}
    (choice,) = site.ask(CHAT, logit_bias={"27": 50}, **fields)["choices"]  # "<"
    assert (check(choice["message"]["tool_calls"]), choice["message"]["content"]) == (["now"], None)
    (choice,) = site.ask(CHAT, logit_bias={"22": 50}, **fields)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("7", "stop")


SAID: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "And Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 2}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Rain"}]},
]


def use_of(engine: Engine, **fields: Any) -> ToolUse:
    asked = ChatRequest.model_validate({"model": MODEL, "messages": HELLO, **fields})
    return ToolUse.of(asked, engine.tokenizer)


def told_to(engine: Engine, **fields: Any) -> list[dict[str, Any]]:
    """The messages that the engine gets."""
    asked = ChatRequest.model_validate({"model": MODEL, "messages": HELLO, **fields})
    return ToolUse.of(asked, engine.tokenizer).messages(asked.messages)


def test_a_model_without_calls_of_its_own_is_told_in_words(site: Site) -> None:
    system, *rest = told_to(site.engine, messages=SAID, tools=TOOLS)
    assert system["role"] == "system"
    assert system["content"].startswith("Be brief.\n\nYou may call functions.")
    assert system["content"].endswith(f"{json.dumps(WEATHER)}\n{json.dumps(NOW)}")
    assert rest == [
        {"role": "user", "content": "And Rome?"},
        {"role": "assistant", "content": CALL},
        {"role": "user", "content": "<tool_response>\nRain\n</tool_response>"},
    ]
    first, user = told_to(site.engine, tools=TOOLS)
    assert (first["role"], user) == ("system", HELLO[0])
    assert site.ask(CHAT, messages=SAID, tools=TOOLS)["choices"][0]["finish_reason"] == "length"
    assert len(told_to(site.engine, messages=SAID)) == 4, "also where none are offered any more"


@pytest.fixture(scope="module", params=["text", "token"])
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template knows calls; what begins one is some bytes, or one token."""
    folder = write("llama", tmp_path_factory.mktemp("native") / MODEL, max_position_embeddings=9999)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": NATIVE}))
    if request.param == "token":
        tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokens.add_tokens(
            [AddedToken(t, normalized=False) for t in ("<tool_call>", "</tool_call>")]
        )
        tokens.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def able(native: Path) -> Iterator[Site]:
    with mk.load(str(native)) as engine, Site(engine) as site:
        yield site


def test_a_template_that_knows_calls_is_used(able: Site) -> None:
    use = use_of(able.engine, messages=SAID, tools=TOOLS)
    assert use.options == {"tools": TOOLS}
    messages = told_to(able.engine, messages=SAID, tools=TOOLS)
    ids = able.engine.intake.encoder.encode(messages, tools=TOOLS)
    assert able.engine.tokenizer.decode(list(ids)) == (
        f"[{json.dumps(WEATHER)}][{json.dumps(NOW)}]"
        + "<|start|>system\nBe brief.<|end|>\n<|start|>user\nAnd Rome?<|end|>\n"
        "<|start|>assistant\n<tool_call>weather: Rome</tool_call><|end|>\n"
        "<|start|>tool\nRain of weather<|end|>\n<|start|>assistant\n"
    )
    answer = able.ask(CHAT, messages=SAID, tools=TOOLS)
    assert answer["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_familys_own_calls_are_held_to_their_schema(able: Site, choice: Any) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    for seed in range(3):
        more = {"max_tokens": 300, "temperature": 1.2, "seed": seed}
        found = [
            able.ask(CHAT, generation_mode=mode, **fields, **more)["choices"][0]
            for mode in ("ar", "mtp")
        ]
        assert {each["finish_reason"] for each in found} == {"tool_calls"}
        one, other = (each["message"]["tool_calls"][0] for each in found)
        check([one])
        assert one["function"] == other["function"]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_strict_call_is_held_to_its_schema_once_it_begins(able: Site, parallel: bool) -> None:
    """Before it, any text may come; behind its start nothing but a call."""
    use = use_of(able.engine, tools=[STRICT], parallel_tool_calls=parallel)
    assert use.grammar is not None
    compiled = Constraints(able.engine.tokenizer, able.engine.facts).of(
        SamplingParams(grammar=use.grammar)
    )
    assert compiled is not None
    form = compiled.start()
    end = next(iter(able.engine.facts.end_ids))

    def may() -> set[int]:
        """The ids that may come next."""
        (row,) = form.allowed(()).tolist()  # type: ignore[misc]
        return {i for i, allowed in enumerate(row) if allowed}

    def say(text: str) -> None:
        for token in able.engine.tokenizer.encode(text, add_special_tokens=False):
            assert form.advance(token) is None

    assert len(may()) > 100
    assert end in may()
    say("Well <tool or <")
    assert end in may()
    say("x <tool_call>")
    assert end not in may()
    assert len(may()) == 1
    say('\n{"name": "weather", "arguments": {')
    assert end not in may()
    say('"city": "Rome", "days": 2}}\n</tool_call>')
    assert form.complete or end in may()
    assert form.complete is (not parallel)


def test_a_strict_tool_leaves_text_free(able: Site) -> None:
    answer = able.ask(CHAT, tools=[STRICT], temperature=1.5, seed=3, max_tokens=30)
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")


def test_the_engine_takes_tools_for_a_template(able: Site) -> None:
    engine = able.engine
    with_tools = engine.generate(HELLO, tools=TOOLS, max_tokens=3)
    assert with_tools.stats.prompt_tokens > engine.generate(HELLO, max_tokens=3).stats.prompt_tokens
    for prompt, tools, raw in (
        (HELLO, "weather", False),
        ("a", TOOLS, True),
        ([1, 2], TOOLS, False),
    ):
        with pytest.raises(InvalidRequest, match="tools "):
            engine.submit(prompt, tools=tools, raw=raw)  # type: ignore[arg-type]
