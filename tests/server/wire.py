"""Clients on bare sockets, and small applications: for what well-behaved ones never do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from mtplx_kernel.server.thread import Endpoint
from tests.engine.gates import PATIENCE_S

TOKEN = "a-token-for-tests"
PLAIN = [(b"content-type", b"text/plain")]


@dataclass(frozen=True)
class Answer:
    """What came back, with the names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object, which is the whole body."""
        assert self.headers["content-type"] == "application/json"
        (found,) = json.loads(self.body).values()
        assert list(found) == ["message", "type", "param", "code"]
        assert found["message"]
        assert "\n" not in found["message"]
        error: dict[str, Any] = found
        return error


@contextlib.contextmanager
def connected(endpoint: Endpoint) -> Iterator[socket.socket]:
    """A connection to an endpoint; waits on it are given up at last."""
    with socket.create_connection((endpoint.host, endpoint.port), PATIENCE_S) as client:
        yield client


def answer_on(client: socket.socket, method: str = "GET") -> Answer:
    """Read one answer."""
    response = HTTPResponse(client, method=method)
    try:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())
    finally:
        response.close()


def head(line: str = "GET / HTTP/1.1", *headers: str, token: str | None = TOKEN) -> bytes:
    """The first line and the headers of a request, as bytes."""
    lines = [line, *headers]
    if not any(header.lower().startswith("host:") for header in headers):
        lines.append("Host: localhost")
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def ask(endpoint: Endpoint, request: bytes) -> Answer:
    """Send a request on a connection of its own, and read the answer."""
    with connected(endpoint) as client:
        client.sendall(request)
        return answer_on(client)


def is_closed(client: socket.socket) -> bool:
    """Whether the other side ends the connection, with nothing more to read."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def refuses(host: str, port: int) -> bool:
    """Whether nobody listens."""
    with socket.socket() as client:
        return client.connect_ex((host, port)) != 0


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path, and the body that came."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send(start())
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})


class Endless:
    """An application that says something again and again until its client has left.

    Attributes
    ----------
    begun, ended
        Set when the first client is answered, and when the first has left; not if it is cancelled.
    """

    def __init__(self, chunk: bytes = b"again\n") -> None:
        self.chunk = chunk
        self.begun, self.ended = threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send(start())
        leaving = asyncio.ensure_future(self._leaving(receive))
        try:
            while not leaving.done():
                message = {"type": "http.response.body", "body": self.chunk, "more_body": True}
                await send(message)
                self.begun.set()
                await asyncio.sleep(0.005)
        finally:
            leaving.cancel()
        self.ended.set()

    async def _leaving(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def start(status: int = 200) -> Message:
    """The first message of an answer."""
    return {"type": "http.response.start", "status": status, "headers": PLAIN}
