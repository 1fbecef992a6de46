"""An application over a tiny model, asked without a socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Self

import httpx
from starlette.testclient import TestClient

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.server.app import make_app
from mtplx_kernel.server.settings import Settings
from tests.engine.gates import PATIENCE_S

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HYPER_CHAT, HYPER_TEXT = "/v1/hyper/chat/completions", "/v1/hyper/completions"
MODEL = "tiny-llama"
HELLO = [{"role": "user", "content": "Hello"}]


class Site:
    """Asks the application of an engine; what is not named in a body has a default.

    Attributes
    ----------
    engine
        Who answers: it may be set to another one.
    """

    def __init__(self, engine: Engine, settings: Settings | None = None) -> None:
        self.engine = engine
        app = make_app(lambda: self.engine, settings or Settings())
        self.client = TestClient(app, raise_server_exceptions=False)

    def __enter__(self) -> Self:
        self.client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.client.__exit__(*error)

    def post(self, path: str, **fields: Any) -> Any:
        """Any answer."""
        return self.client.post(path, json=body(path, **fields))

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """A whole answer."""
        response = self.post(path, **fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        found: dict[str, Any] = response.json()
        return found

    def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that comes to its end."""
        response = self.post(path, stream=True, **fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        *chunks, end = events(response.text)
        assert end == "[DONE]"
        return [json.loads(chunk) for chunk in chunks]

    def refusal(self, path: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        """The status and the error."""
        return error_of(self.post(path, **fields))


def body(path: str, **fields: Any) -> dict[str, Any]:
    """A greedy request for a few tokens, with other fields put in."""
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": "Hello"}
    return {"model": MODEL, "max_tokens": 12, "temperature": 0, **prompt, **fields}


def error_of(response: httpx.Response) -> tuple[int, dict[str, Any]]:
    """The status and the error of an answer in OpenAI's shape."""
    assert response.headers["content-type"] == "application/json"
    (found,) = response.json().values()
    assert list(found) == ["message", "type", "param", "code"]
    assert len(found["message"].splitlines()) == 1
    return response.status_code, found


def events(text: str) -> list[str]:
    """The data of server-sent events."""
    *lines, last = text.split("\n\n")
    assert last == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """What the chunks of one choice add up to."""
    pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in pieces)


def reason_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """Why a choice ended: told once, in its last chunk."""
    found = [
        c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index
    ]
    assert set(found[:-1]) == {None}
    reason: str = found[-1]
    return reason


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for what must come soon; no test passes or fails by being fast."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)
