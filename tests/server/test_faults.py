"""Faults of the server's own: clients are told that there was one, and the log says once which."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.server.app import make_app
from mtplx_kernel.server.chat import ChatForm
from mtplx_kernel.server.serving import Serving
from mtplx_kernel.server.settings import Settings
from mtplx_kernel.server.thread import Endpoint, serve
from tests.server.site import CHAT, body, events
from tests.server.wire import TOKEN, answer_on, connected, head, is_closed


@pytest.fixture(scope="module")
def endpoint(served: Engine) -> Iterator[Endpoint]:
    with serve(lambda: served, token=TOKEN) as opened:
        yield opened


def post(**fields: Any) -> bytes:
    content = json.dumps(body(CHAT, **fields)).encode()
    length = f"Content-Length: {len(content)}"
    return head(f"POST {CHAT} HTTP/1.1", "Content-Type: application/json", length) + content


def broken(*_: Any) -> Any:
    raise ZeroDivisionError("a secret")


def test_a_fault_before_the_answer_is_500_and_logged_once(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ChatForm, "whole", broken)
    with connected(endpoint) as client:
        client.sendall(post())
        answer = answer_on(client, "POST")
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert b"secret" not in answer.body
        assert answer.headers["connection"] == "close"
        assert is_closed(client)
    assert logged(caplog) == ["ZeroDivisionError"]


def test_a_fault_within_a_stream_is_its_last_event_and_logged_once(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ChatForm, "chunks", broken)
    with connected(endpoint) as client:
        client.sendall(post(stream=True))
        received = b""
        while b"internal_error" not in received:
            piece = client.recv(100_000)
            assert piece, received
            received += piece
        assert b"secret" not in received
        while not is_closed(client):
            pass
    assert b"[DONE]" not in received
    lines = [line for line in received.decode().splitlines() if line.startswith("data: ")]
    assert json.loads(events(lines[-1] + "\n\n")[0])["error"]["type"] == "server_error"
    assert logged(caplog) == ["ZeroDivisionError"]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The errors that the log tells of, by the kind of their exception."""
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    return [record.exc_info[0].__name__ for record in records if record.exc_info]  # type: ignore[union-attr]


def test_a_server_that_ends_with_a_fault_lets_its_thread_go(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Serving] = []
    monkeypatch.setattr(Serving, "close", lambda serving: closed.append(serving))

    async def run() -> None:
        app = make_app(lambda: served, Settings())
        async with app.router.lifespan_context(app):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    assert len(closed) == 1
