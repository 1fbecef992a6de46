"""How one chat's functions are told to the model, and what its answer is held to for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mtplx_kernel.server.schema import ChatRequest, Message
from mtplx_kernel.server.shaping import CalledFunction, NamedTool, Tool, arguments_of

START, END = "<tool_call>", "</tool_call>"
RESPONSE = "<tool_response>\n{}\n</tool_response>"
INTRODUCTION = (
    "You may call functions. A call is written as\n"
    f'{START}\n{{"name": NAME, "arguments": {{ARGUMENTS}}}}\n{END}\n'
    "and its result comes in the next message. The functions, as JSON:\n"
)
JSON_STYLE = {"whitespace_pattern": r"\n?[ \t]{0,16}"}
"""JSON may be indented, but not without an end: a model may like blanks."""
JSON_FAMILY = "json_tools"
"""mlx-lm's name for the families that write a call as one JSON object."""
Parse = Callable[[str, list[dict[str, Any]]], Any]


@dataclass(frozen=True, slots=True)
class CallStyle:
    """How a model writes a call.

    Attributes
    ----------
    start, end
        What stands before and after; without an end a call goes on to the answer's.
    parse
        From what stands between them, and the functions, to one call or a list of them, each with
        `name` and `arguments`.
    by_template
        Whether the model's chat template knows functions; else a system message tells of them.
    """

    start: str
    end: str
    parse: Parse
    by_template: bool


PLAIN = CallStyle(START, END, lambda text, _: json.loads(text), by_template=False)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What one chat makes of its functions.

    Attributes
    ----------
    style
        How calls are written.
    offered
        The functions that the model is told of; none if it is not to call any.
    grammar
        What the answer is held to; None where it is free, or held to the chat's own schema alone.
    single
        Whether only the first call of an answer counts.
    """

    style: CallStyle
    offered: list[dict[str, Any]]
    grammar: str | None
    single: bool

    @classmethod
    def of(cls, asked: ChatRequest, tokenizer: Any) -> ToolUse:
        """Choose.

        A family's own way to write calls is taken where mlx-lm can read it. Where the answer is to
        be held to a grammar, that is so only if it is JSON; else the plain way is told and taken.
        """
        tools = [] if asked.tool_choice == "none" else list(asked.tools or ())
        choice, named = asked.tool_choice, isinstance(asked.tool_choice, NamedTool)
        schema = None if asked.response_format is None else asked.response_format.schema_text
        strict = any(tool.function.strict for tool in tools)
        held = bool(tools) and (choice == "required" or named or strict or schema is not None)
        style = _style(tokenizer, as_json=held)
        single = asked.parallel_tool_calls is False or named
        offered = [
            tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools
        ]
        grammar = None
        if held:
            callable_ = [
                tool
                for tool in tools
                if not isinstance(choice, NamedTool) or tool.function.name == choice.function.name
            ]
            forced = choice == "required" or named
            grammar = _grammar(callable_, tokenizer, schema, forced=forced, single=single)
        return cls(style, offered, grammar, single)

    @property
    def options(self) -> dict[str, Any]:
        """What the engine is told beside the messages."""
        options: dict[str, Any] = {} if self.grammar is None else {"grammar": self.grammar}
        if self.offered and self.style.by_template:
            options["tools"] = self.offered
        return options

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as the engine takes them."""
        written = self._by_template if self.style.by_template else self._plainly
        names = {
            call.id: call.function.name for message in messages for call in message.tool_calls or ()
        }
        found = [written(message, names) for message in messages]
        if self.offered and not self.style.by_template:
            told = INTRODUCTION + "\n".join(map(_json, self.offered))
            first = found[0]
            if first["role"] == "system":
                found[0] = {**first, "content": f"{first['content']}\n\n{told}".strip()}
            else:
                found.insert(0, {"role": "system", "content": told})
        return found

    def _by_template(self, message: Message, names: dict[str, str]) -> dict[str, Any]:
        written = _plain(message)
        if message.tool_calls is not None:
            written["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": arguments_of(call.function.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            written |= {
                "tool_call_id": message.tool_call_id,
                "name": names[message.tool_call_id],
            }
        return written

    def _plainly(self, message: Message, names: dict[str, str]) -> dict[str, Any]:
        written = _plain(message)
        if message.tool_calls is not None:
            calls = [_written(call.function) for call in message.tool_calls]
            written["content"] = "\n".join([message.text, *calls]).strip()
        if message.role == "tool":
            written = {"role": "user", "content": RESPONSE.format(message.text)}
        return written


def _written(function: CalledFunction) -> str:
    """A call in the plain way."""
    call = {"name": function.name, "arguments": arguments_of(function.arguments)}
    return f"{START}\n{_json(call)}\n{END}"


def _plain(message: Message) -> dict[str, Any]:
    """A message as the chat template gets it; a developer is the system's newer name."""
    role = "system" if message.role == "developer" else message.role
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.text, **named}


def _style(tokenizer: Any, *, as_json: bool) -> CallStyle:
    """The family's way to write calls, if it can be read, and is JSON where it must be."""
    if not tokenizer.has_tool_calling:
        return PLAIN
    family = tokenizer.tool_parser.__module__.rpartition(".")[2]
    if as_json and family != JSON_FAMILY:
        return PLAIN
    return CallStyle(
        tokenizer.tool_call_start, tokenizer.tool_call_end, tokenizer.tool_parser, by_template=True
    )


def _grammar(
    tools: Sequence[Tool],
    tokenizer: Any,
    schema: dict[str, Any] | None,
    *,
    forced: bool,
    single: bool,
) -> str:
    """What an answer is held to, as llguidance's Lark.

    Parameters
    ----------
    schema
        What an answer without calls must fit; None leaves it free.
    forced
        Whether there must be a call.
    single
        Whether there may be one only.
    """
    start, end = (_marker(text, tokenizer) for text in (START, END))
    bodies = " | ".join(f"body_{i}" for i in range(len(tools)))
    more = "" if single else r' ("\n" call)*'
    lines = [f"calls: call{more}", f"call: {start} rest", f'rest: "\\n" ({bodies}) "\\n" {end}']
    for i, tool in enumerate(tools):
        before = _json(f'{{"name": {_json(tool.function.name)}, "arguments": ')
        lines.append(f'body_{i}: {before} arguments_{i} "}}"')
        lines.append(f"arguments_{i}: %json {_arguments(tool)}")
    if forced:
        lines.append("start: calls")
    elif schema is not None:
        lines += ["start: calls | answer", f"answer: %json {_styled(schema)}"]
    else:
        lines += _between(start, tokenizer, single=single)
    return "\n".join(lines)


def _between(start: str, tokenizer: Any, *, single: bool) -> list[str]:
    """Any text, and calls where it says that one begins."""
    if tokenizer.get_added_vocab().get(START) is not None:
        # A token of its own starts a call; the others of that kind, but for the end, are text.
        known = set(tokenizer.get_added_vocab().values())
        others = sorted(known - set(tokenizer.eos_token_ids) - {tokenizer.get_added_vocab()[START]})
        other = f" | <[{','.join(map(str, others))}]>" if others else ""
        return [
            "start: text call?" if single else "start: text (call text)*",
            f"text: (TEXT{other})*",
            "TEXT: /(.|\\n)+/",
        ]
    return [
        "start: " + ("TEXT | called" if single else "called* TEXT"),
        "called: begun rest",
        f"begun[lazy]: TEXT {start}",
        "TEXT: /(.|\\n)*/",
    ]


def _arguments(tool: Tool) -> str:
    parameters = tool.function.parameters
    if parameters is None:
        parameters = {"properties": {}, "additionalProperties": False}
    return _styled({"type": "object", **parameters})


def _styled(schema: dict[str, Any]) -> str:
    return _json({**schema, "x-guidance": JSON_STYLE})


def _marker(text: str, tokenizer: Any) -> str:
    """A marker in the grammar: the token that it is, or its text."""
    token = tokenizer.get_added_vocab().get(text)
    return _json(text) if token is None else f"<[{token}]>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
