"""What can be asked of the endpoint: OpenAI's parameters, and the engine's own beside them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from mtplx_kernel.server.errors import MISSING, Complaint
from mtplx_kernel.server.records import Record
from mtplx_kernel.server.shaping import (
    NamedTool,
    ResponseFormat,
    ToolCall,
    ToolChoice,
    Tools,
)
from mtplx_kernel.server.values import (
    MOST_PROMPTS,
    MOST_STOPS,
    ONLY_TEXT,
    check_bias,
    check_content,
    check_name,
    check_prompt,
    check_stop,
)

MOST_CHOICES = 8
MOST_TOP_LOGPROBS = 20
MOST_LOGPROBS = 5
MOST_MESSAGES = 10_000
LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1
LONGEST_ANSWER = 2048
"""Tokens of a chat answer that names no limit, where the context has room for more."""
LONGEST_TEXT = 16
"""Tokens of a completion that names no limit: OpenAI's default."""

_OLD = "{name} is OpenAI's older name: use {now}"

LATER_CHAT = {
    "functions": _OLD.format(name="functions", now="tools"),
    "function_call": _OLD.format(name="function_call", now="tool_choice"),
    "audio": f"audio is not offered: {ONLY_TEXT}",
    "prediction": "prediction is not offered: mode mtp drafts by itself",
    "reasoning_effort": "reasoning_effort is not offered: ask for it in the prompt",
    "verbosity": "verbosity is not offered: ask for it in the prompt",
    "web_search_options": "web search is not offered",
}
"""OpenAI's fields of a chat that are refused, with what is said; null is let pass."""
LATER_COMPLETION = {"suffix": "suffix is not offered: the model writes on from the prompt's end"}
"""The same of a completion."""


Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, min_length=1)]
TokenName = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,8})$")]


class StreamOptions(Record):
    """What a stream tells beside the text."""

    include_usage: bool | None = Field(None, description="Send the usage in a chunk at the end.")
    include_obfuscation: bool | None = Field(None, description="Without effect.")


class TextPart(Record):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(Record):
    """A message of a chat. The fields that only take null are those of an answer sent back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(fail_fast=True, min_length=1)] | None,
        BeforeValidator(check_content),
    ] = None
    name: Annotated[str | None, BeforeValidator(check_name)] = None
    refusal: None = None
    audio: None = None
    annotations: None = None
    function_call: None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, min_length=1)] | None = None
    tool_call_id: str | None = Field(None, description="The call that a tool answers.")

    @model_validator(mode="after")
    def _together(self) -> Message:
        if self.tool_calls is not None and self.role != "assistant":
            raise Complaint("only an assistant's message has tool_calls", field="tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise Complaint(
                "a tool's message must have a tool_call_id, and no other may", field="tool_call_id"
            )
        if self.content is None and self.tool_calls is None:
            code = "invalid_value" if "content" in self.model_fields_set else MISSING
            raise Complaint("a message must have a content, or tool_calls", code, field="content")
        return self

    @property
    def text(self) -> str:
        """The content as one text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class Asked(Record):
    """What both routes take. Null means the default."""

    prompt_param: ClassVar[str]

    model: str = Field(min_length=1, max_length=4096, description="As /v1/models names it.")
    max_tokens: int | None = Field(None, ge=1, description="Most tokens of an answer.")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; 1 if not given.")
    top_p: float | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1, le=MOST_CHOICES, description="Answers to a prompt.")
    stop: Annotated[
        Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_STOPS)] | None,
        BeforeValidator(check_stop),
    ] = None
    seed: int | None = Field(
        None, ge=LEAST_SEED, le=MOST_SEED, description="Answer i is drawn with seed + i."
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[
        dict[TokenName, Annotated[float, Field(ge=-100, le=100)]] | None,
        BeforeValidator(check_bias),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Without effect.")

    generation_mode: Literal["mtp", "ar"] | None = Field(
        None, description="Draft and verify, or one token a forward; null takes the engine's."
    )
    depth: int | None = Field(None, ge=0, le=16, description="Drafts a cycle in mode mtp.")
    acceptance: Literal["coupled", "rejection", "block"] | None = None
    priority: float | None = Field(
        None, ge=0.01, le=100, description="Share of the service where requests take turns."
    )
    min_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, description="0 keeps all.")
    ignore_eos: bool | None = Field(
        None, description="Go on past the model's own end tokens: for measurements."
    )
    include_stats: bool | None = Field(
        None, description="Add the engine's own figures to the answer, as `mtplx`."
    )

    @model_validator(mode="after")
    def _options_of_streams(self) -> Asked:
        if self.stream_options is not None and not self.stream:
            raise Complaint(
                "stream_options is allowed only where stream is true", field="stream_options"
            )
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choices(self) -> int:
        """How many answers to a prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def most_tokens(self) -> int:
        """Most tokens of an answer."""
        raise NotImplementedError

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest ids are reported of each token; None reports none at all."""
        raise NotImplementedError


class ChatRequest(Asked):
    """The body of a chat completion."""

    prompt_param: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(
        min_length=1, max_length=MOST_MESSAGES
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, description=f"As max_tokens; {LONGEST_ANSWER} if neither is given."
    )
    logprobs: bool | None = Field(None, description="Report each token's log-probability.")
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: Tools = Field(None, description="Functions that the model may call.")
    tool_choice: ToolChoice = Field(None, description="auto if there are tools and none is given.")
    parallel_tool_calls: bool | None = Field(
        None, description="Whether an answer may have several calls; true if not given."
    )
    modalities: list[Literal["text"]] | None = Field(None, min_length=1)
    store: bool | None = Field(None, description="Without effect: nothing is stored.")
    metadata: dict[str, str] | None = Field(None, description="Without effect.")
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = Field(
        None, description="Without effect."
    )
    prompt_cache_key: str | None = Field(None, description="Without effect.")
    prompt_cache_retention: str | None = Field(None, description="Without effect.")
    safety_identifier: str | None = Field(None, description="Without effect.")

    @model_validator(mode="after")
    def _together(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise Complaint(
                "max_tokens and max_completion_tokens cannot both be given", field="max_tokens"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise Complaint(
                "top_logprobs is allowed only where logprobs is true", field="top_logprobs"
            )
        return self

    @model_validator(mode="after")
    def _of_tools(self) -> ChatRequest:
        for field in ("tool_choice", "parallel_tool_calls"):
            if getattr(self, field) is not None and self.tools is None:
                raise Complaint(f"{field} is allowed only where tools are given", field=field)
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise Complaint(f"tool_choice must name one of {', '.join(names)}", field="tool_choice")
        called: set[str] = set()
        for at, message in enumerate(self.messages):
            if message.tool_call_id is not None and message.tool_call_id not in called:
                raise Complaint(
                    f"messages[{at}] answers a call that no message before it has",
                    field="messages",
                )
            called |= {call.id for call in message.tool_calls or ()}
        return self

    @property
    def most_tokens(self) -> int:
        """Most tokens of an answer."""
        return self.max_completion_tokens or self.max_tokens or LONGEST_ANSWER

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest ids are reported of each token; None reports none at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Asked):
    """The body of a completion: the model writes on from the prompt, without a chat template."""

    prompt_param: ClassVar[str] = "prompt"

    prompt: Annotated[
        Text
        | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
        | Tokens
        | Annotated[list[Tokens], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)],
        BeforeValidator(check_prompt),
        Field(description=f"Text or token ids; at most {MOST_PROMPTS} of them in a list."),
    ]
    best_of: int | None = Field(None, ge=1, description="Only as many as n: nothing is ranked.")
    echo: bool | None = Field(None, description="Put the prompt before the answer.")
    logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="How many of the likeliest ids to report."
    )

    @model_validator(mode="after")
    def _together(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.choices:
            raise Complaint("best_of must be n, or null: nothing is ranked", field="best_of")
        if self.echo and self.logprobs is not None:
            raise Complaint(
                "logprobs are those of the answer alone, so not with echo", field="logprobs"
            )
        return self

    @property
    def most_tokens(self) -> int:
        """Most tokens of an answer."""
        return self.max_tokens or LONGEST_TEXT

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest ids are reported of each token; None reports none at all."""
        return self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt
