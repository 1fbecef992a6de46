"""What an endpoint answers, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens that an answer cost; `cached_tokens` of the prompt's came from a cache."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the answers to a prompt; its log-probabilities are as the endpoint gives them."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An endpoint's answer.

    Attributes
    ----------
    text
        Of the first choice.
    finish_reason
        Why the first choice ended; None in a stream that has not.
    usage
        None where the endpoint does not say.
    model
        The model that answered, as the endpoint names it.
    choices
        All answers, in order: there are several where `n` asked for them.
    raw
        The endpoint's object. A stream's has the same shape, put together from its chunks.
    """

    text: str
    finish_reason: str | None
    usage: Usage | None
    model: str | None
    choices: tuple[Choice, ...] = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)


def completion_of(raw: Mapping[str, Any]) -> Completion:
    """Read an answer of either route.

    Raises
    ------
    ValueError
        If it is no answer in OpenAI's shape; the message ends the sentence "the answer ...".
    """
    listed = raw.get("choices")
    if not isinstance(listed, list) or not listed:
        raise ValueError("has no choices")
    choices = tuple(sorted(map(_choice, listed), key=lambda choice: choice.index))
    model = raw.get("model")
    return Completion(
        text=choices[0].text,
        finish_reason=choices[0].finish_reason,
        usage=_usage(raw.get("usage")),
        model=model if isinstance(model, str) else None,
        choices=choices,
        raw=raw,
    )


def _choice(raw: object) -> Choice:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("index"), int):
        raise ValueError("has a choice without an index")
    message = raw.get("message")
    text = message.get("content") if isinstance(message, Mapping) else raw.get("text")
    return Choice(
        index=raw["index"],
        text=text if isinstance(text, str) else "",  # None beside tool calls
        finish_reason=raw.get("finish_reason"),
        logprobs=raw.get("logprobs"),
    )


def _usage(raw: object) -> Usage | None:
    if not isinstance(raw, Mapping):
        return None
    details = raw.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=raw.get("prompt_tokens", 0),
        completion_tokens=raw.get("completion_tokens", 0),
        total_tokens=raw.get("total_tokens", 0),
        cached_tokens=details.get("cached_tokens") if isinstance(details, Mapping) else None,
    )
