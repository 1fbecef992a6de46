"""What an answer tells, from its events or at once, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"


class Broken(Exception):
    """An answer that is not what an answer must be."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of an answer.

    Attributes
    ----------
    tokens
        Each token as the answer's log-probabilities write it, as far as they were asked for.
    """

    text: str
    tokens: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Told:
    """A whole answer, without what differs from one time to the next, such as its id."""

    choices: tuple[Choice, ...]
    completion_tokens: int


@dataclass(slots=True)
class _Growing:
    text: str = ""
    tokens: list[str] = field(default_factory=list)
    reason: str | None = None


class Reader:
    """Puts a stream's events together, and objects to whatever does not fit.

    Raises
    ------
    Broken
        For an error among the events, another answer's id, a choice that goes on after its end, and
        an answer that ends too soon or goes on after its end.
    """

    def __init__(self) -> None:
        self._choices: dict[int, _Growing] = {}
        self._id: str | None = None
        self._tokens: int | None = None
        self._done = False

    def line(self, line: str) -> None:
        """Take a line of the stream."""
        if not line:
            return
        if self._done or not line.startswith("data: "):
            raise Broken(f"a line that is no event, or comes after the end: {line[:80]!r}")
        data = line.removeprefix("data: ")
        if data == DONE:
            self._done = True
        else:
            self._event(json.loads(data))

    def told(self) -> Told:
        """The answer, once the stream has ended."""
        if not self._done or self._tokens is None:
            raise Broken("the stream ended without its last events")
        return _whole(
            {n: Choice(c.text, tuple(c.tokens), c.reason or "") for n, c in self._choices.items()},
            self._tokens,
        )

    def _event(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            raise Broken(f"the stream ended with an error: {event['error']['message']}")
        if self._id not in (None, event["id"]):
            raise Broken(f"an event of {event['id']} in the stream of {self._id}")
        self._id = event["id"]
        for choice in event["choices"]:
            growing = self._choices.setdefault(choice["index"], _Growing())
            if growing.reason is not None:
                raise Broken(f"choice {choice['index']} goes on after its end")
            growing.text += _text(choice.get("delta", choice))
            growing.tokens += _tokens(choice)
            growing.reason = choice["finish_reason"]
        if event.get("usage"):
            self._tokens = event["usage"]["completion_tokens"]


def whole(answer: Mapping[str, Any]) -> Told:
    """What an answer at once tells."""
    return _whole(
        {
            choice["index"]: Choice(
                _text(choice.get("message", choice)),
                tuple(_tokens(choice)),
                choice["finish_reason"],
            )
            for choice in answer["choices"]
        },
        answer["usage"]["completion_tokens"],
    )


def _whole(choices: Mapping[int, Choice], tokens: int) -> Told:
    if sorted(choices) != list(range(len(choices))) or not all(c.reason for c in choices.values()):
        raise Broken(f"choices are missing or have no end: {dict(choices)}")
    return Told(tuple(choices[index] for index in sorted(choices)), tokens)


def _text(said: Mapping[str, Any]) -> str:
    return said["text"] if "text" in said else said.get("content") or ""


def _tokens(choice: Mapping[str, Any]) -> Iterable[str]:
    logprobs = choice["logprobs"] or {}
    if "content" in logprobs:
        return [token["token"] for token in logprobs["content"]]
    tokens: list[str] = logprobs.get("tokens", [])
    return tokens
