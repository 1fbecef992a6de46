"""Send odd requests and look at what comes back: an answer, never a failure of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import h11
import httpx

from tests.conformance.load import PATIENCE_S, Target
from tests.conformance.odd import Odd, odd

AT_ONCE = 16
FULL = 503
NO_ANSWER = 0
"""Stands for the status of what was not answered, since more of it was waited for."""
BRIEFLY_S = 0.3
"""How long is waited for an answer to what may lack its end."""
FIELDS = ["message", "type", "param", "code"]


@dataclass(slots=True)
class Found:
    """What came of it.

    Attributes
    ----------
    statuses
        How often each came; 0 where a request broke off or asked the server to wait for more.
    faults
        What must not happen, a line each, with the number of the request.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Wrong(Exception):
    """An answer that must not come."""


async def fuzz(target: Target, *, requests: int, seed: int) -> Found:
    """Send so many odd requests, a few at a time; then see that the endpoint is well."""
    found, numbers = Found(), iter(range(requests))

    async def send_on() -> None:
        for number in numbers:
            request = odd(target, seed, number)
            try:
                found.statuses[await _send(target, request)] += 1
            except (Wrong, OSError, ValueError, KeyError, h11.RemoteProtocolError) as error:
                said = f"request {number} of seed {seed}: {type(error).__name__}: {error}"
                found.faults.append(said)

    await asyncio.gather(*(send_on() for _ in range(AT_ONCE)))
    await _check_health(target, found)
    return found


async def _send(target: Target, request: Odd) -> int:
    """Send one request; the status of the answer."""
    url = httpx.URL(target.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        # Who is refused may find the connection closed before all is sent.
        with contextlib.suppress(ConnectionError):
            writer.write(request.data)
            await writer.drain()
        if request.cut:
            return NO_ANSWER
        return await _answer(reader, request)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader, request: Odd) -> int:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=_plain(request.method), target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    response, body = None, b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            data = await _read(reader, wait=response is not None or _whole(request.data))
            if data is None:
                return NO_ANSWER
            if data == b"" and response is None:
                raise Wrong("the connection was closed without an answer")
            client.receive_data(data)
        elif isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or event is h11.PAUSED:
            break
    assert response is not None
    _check(response, body, request.method)
    return response.status_code


async def _read(reader: asyncio.StreamReader, *, wait: bool) -> bytes | None:
    """What comes next; None if it does not come, where that is fine."""
    try:
        async with asyncio.timeout(PATIENCE_S if wait else BRIEFLY_S):
            return await reader.read(65_536)
    except TimeoutError:
        if wait:
            raise Wrong("no answer came in time") from None
        return None
    except ConnectionResetError:
        return b""


def _whole(data: bytes) -> bool:
    """Whether a request is as long as its headers say, as far as one can tell."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
    with contextlib.suppress(h11.RemoteProtocolError):
        server.receive_data(data)
        for _ in count():
            event = server.next_event()
            if event is h11.NEED_DATA:
                return False
            if isinstance(event, h11.EndOfMessage):
                break
    return True


def _plain(method: str) -> str:
    """A method that h11 sends; what the answer's body depends on is whether it is HEAD."""
    return "HEAD" if method == "HEAD" else "POST"


def _check(response: h11.Response, body: bytes, method: str) -> None:
    status = response.status_code
    kind = dict(response.headers).get(b"content-type", b"").decode()
    if status >= 500 and status != FULL:
        raise Wrong(f"status {status}: {body[:300]!r}")
    if method == "HEAD":
        return
    if status >= 400:
        _check_error(json.loads(body))
    elif kind.startswith("text/event-stream"):
        *_, last, end = body.decode().split("\n\n")
        if end or not last.startswith("data: "):
            raise Wrong(f"a stream that ends with {last!r}, {end!r}")
        if last != "data: [DONE]":
            _check_error(json.loads(last.removeprefix("data: ")))
    elif kind == "application/json":
        json.loads(body)


def _check_error(answer: dict[str, Any]) -> None:
    """OpenAI's error object, with one line that says what is wrong.

    In a stream, whose status has been sent, one of type server_error is what a 500 is elsewhere.
    """
    error = answer["error"]
    if list(error) != FIELDS or not error["message"] or "\n" in error["message"]:
        raise Wrong(f"an error in another shape: {answer}")
    if error["type"] == "server_error" and error["code"] not in ("queue_full", "engine_closed"):
        raise Wrong(f"the server failed: {answer}")


async def _check_health(target: Target, found: Found) -> None:
    headers = {"authorization": f"Bearer {target.token}"}
    good = {"model": target.model, "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    async with httpx.AsyncClient(
        base_url=target.url, headers=headers, timeout=PATIENCE_S
    ) as client:
        for path in ("/health", "/status", "/metrics"):
            response = await client.get(path)
            if response.status_code != 200:
                found.faults.append(f"afterwards {path} has status {response.status_code}")
        response = await client.post("/v1/completions", json=good)
        if response.status_code != 200:
            found.faults.append(f"afterwards a good request has status {response.status_code}")
