"""Answers in OpenAI's shape, as endpoints give them."""

from __future__ import annotations

from typing import Any

import httpx

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
}
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}


def completion(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}],
        "usage": USAGE,
        **fields,
    }


def chat(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": None}
    return completion("", object="chat.completion", choices=[choice])


def piece(text: str, finish_reason: str | None = None, index: int = 0) -> dict[str, Any]:
    """A chunk of a streamed completion."""
    choice = {"index": index, "text": text, "finish_reason": finish_reason, "logprobs": None}
    return completion("", choices=[choice], usage=None)


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a streamed chat answer."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason, "logprobs": None}
    return completion("", object="chat.completion.chunk", choices=[choice], usage=None)


def refused(message: str, **fields: Any) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        | fields
    }


Reply = httpx.Response | Exception


class Replies(httpx.AsyncBaseTransport):
    """A transport that gives one reply after the other, and keeps the requests."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def paths(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.requests]
