"""What the endpoint answers with: OpenAI's objects, written with the fields that were set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mtplx_kernel.engine.request import Generation

FinishReason = Literal["stop", "length", "tool_calls"]
CHAT, CHAT_CHUNK = "chat.completion", "chat.completion.chunk"
LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a token that is all but ruled out; JSON has no infinity."""


class Answer(BaseModel):
    """Writes the fields that were set, null ones too."""

    model_config = ConfigDict(frozen=True, strict=True)

    def json_bytes(self) -> bytes:
        """The object as JSON."""
        return self.model_dump_json(exclude_unset=True).encode()


class LikelyToken(Answer):
    """A token that might have come; `bytes` are those of its text, or of a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(LikelyToken):
    """The token that came, and the likeliest in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(Answer):
    """A chat answer's tokens."""

    content: list[ChosenToken]
    refusal: None = None


class CalledFunction(Answer):
    """The function that is called, and its arguments as JSON text."""

    name: str
    arguments: str


class AnsweredCall(Answer):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CallDelta(AnsweredCall):
    """A call in a stream, which comes whole."""

    index: int


class AnswerMessage(Answer):
    """The model's message; without a content where it is calls alone."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    tool_calls: list[AnsweredCall] | None = None


class ChatChoice(Answer):
    """One answer of a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class MessageDelta(Answer):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(Answer):
    """What a chunk adds to one answer of a chat."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class TextLogprobs(Answer):
    """A completion's tokens: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(Answer):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class PromptDetails(Answer):
    """Of the prompt's tokens."""

    cached_tokens: int
    audio_tokens: Literal[0] = 0


class CompletionDetails(Answer):
    """Of the answers' tokens; the predictions are the drafts of mode mtp."""

    reasoning_tokens: Literal[0] = 0
    audio_tokens: Literal[0] = 0
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Answer):
    """What a request cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Stats(Answer):
    """The engine's own figures: one record a choice."""

    choices: list[dict[str, Any]]


class ChatAnswer(Answer):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    mtplx: Stats | None = None


class ChatChunk(Answer):
    """A piece of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    mtplx: Stats | None = None


class TextAnswer(Answer):
    """A completion, or a piece of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | None = None
    mtplx: Stats | None = None


class Model(Answer):
    """A model that answers."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Answer):
    """The models that answer."""

    object: Literal["list"]
    data: list[Model]


class ErrorFields(Answer):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """An error."""

    error: ErrorFields


ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What is wrong, and what is allowed.",
        "content": {
            "application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}}
        },
    }
}
"""How the description of the API tells of every answer that is none of the expected ones."""


def usage_of(generations: Sequence[Generation], to_a_prompt: int) -> Usage:
    """What some choices cost together.

    Parameters
    ----------
    generations
        In the order of their index.
    to_a_prompt
        How many choices each prompt has; it is counted once.
    """
    stats = [generation.stats for generation in generations]
    firsts = stats[::to_a_prompt]
    prompt, completion = (
        sum(each.prompt_tokens for each in firsts),
        sum(each.completion_tokens for each in stats),
    )
    drafted = sum(sum(each.drafted_by_depth or ()) for each in stats)
    accepted = sum(sum(each.accepted_by_depth or ()) for each in stats)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(each.cached_tokens or 0 for each in firsts), audio_tokens=0
        ),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=0,
            audio_tokens=0,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=drafted - accepted,
        ),
    )


def stats_of(generations: Sequence[Generation]) -> Stats:
    """The engine's figures, one record a choice."""
    return Stats(
        choices=[
            {"index": index, "request_id": each.request_id, **each.stats.as_dict()}
            for index, each in enumerate(generations)
        ]
    )


def finite(logprob: float) -> float:
    """A log-probability that JSON can write."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB
