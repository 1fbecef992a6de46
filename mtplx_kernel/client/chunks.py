"""A stream's chunks, put together as they come: its text, and an answer of the usual shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mtplx_kernel.client.answers import Completion, completion_of
from mtplx_kernel.client.refusals import refusal
from mtplx_kernel.errors import EndpointError

GROWS = frozenset({"content", "text", "arguments", "refusal", "reasoning_content"})
"""The fields that carry a piece of a longer text; another string takes the earlier one's place."""

NOTHING = Completion(text="", finish_reason=None, usage=None, model=None, choices=(), raw={})


class StreamedAnswer:
    """What has come of one answer."""

    def __init__(self) -> None:
        self._raw: dict[str, Any] = {}

    def add(self, data: bytes) -> str:
        """Take the data of one event, and give the text that it adds to the first choice.

        Raises
        ------
        EndpointError
            If it is an error, or no chunk; with what had come before.
        """
        chunk = self._chunk(data)
        if chunk.get("error") is not None:
            raise refusal(chunk, "the stream ends with an error", completion=self.completion)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
            raise self._no_chunk("it has no choices")
        _merge(self._raw, chunk)
        return "".join(_text(choice) for choice in choices if choice.get("index") == 0)

    def _chunk(self, data: bytes) -> dict[str, Any]:
        try:
            chunk = json.loads(data)
        except ValueError as error:
            raise self._no_chunk(str(error)) from error
        if not isinstance(chunk, dict):
            raise self._no_chunk("it is no object")
        return chunk

    def _no_chunk(self, why: str) -> EndpointError:
        return EndpointError(
            f"the stream holds something that is no chunk of an answer: {why}",
            completion=self.completion,
        )

    @property
    def finished(self) -> bool:
        """Whether there is an answer, and all that have begun have a finish reason."""
        choices = self._raw.get("choices", [])
        return bool(choices) and all(choice.get("finish_reason") for choice in choices)

    @property
    def completion(self) -> Completion:
        """What has come, as an answer that is not streamed would show it."""
        if not self._raw.get("choices"):
            return NOTHING
        raw = {**self._raw, "choices": [_whole(choice) for choice in self._raw["choices"]]}
        if isinstance(raw.get("object"), str):
            raw["object"] = raw["object"].removesuffix(".chunk")
        return completion_of(raw)


def _text(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, Mapping) else choice.get("text")
    return text if isinstance(text, str) else ""


def _whole(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"message" if name == "delta" else name: value for name, value in choice.items()}


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part to an object, by the rule of all chunks: pieces are appended, the rest replaces.

    Entries of a list that have an index (choices, tool calls) are merged with their namesakes.
    """
    for name, value in part.items():
        held = into.get(name)
        if isinstance(value, str) and isinstance(held, str) and name in GROWS:
            into[name] = held + value
        elif isinstance(value, dict):
            into[name] = held if isinstance(held, dict) else {}
            _merge(into[name], value)
        elif isinstance(value, list):
            into[name] = held if isinstance(held, list) else []
            for item in value:
                if _indexed(item):
                    _merge(_namesake(into[name], item["index"]), item)
                else:
                    into[name].append(item)
        elif value is not None or name not in into:
            into[name] = value


def _indexed(item: object) -> bool:
    return isinstance(item, dict) and type(item.get("index")) is int


def _namesake(items: list[Any], index: int) -> dict[str, Any]:
    """The entry of a list that has an index, made where there is none yet."""
    for held in items:
        if _indexed(held) and held["index"] == index:
            found: dict[str, Any] = held
            return found
    made: dict[str, Any] = {"index": index}
    items.append(made)
    return made
