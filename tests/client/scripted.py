"""A small endpoint on a socket of this machine, which answers as a test says."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

PATIENCE_S = 20.0
"""How long a test waits for what must come; only a failure takes that long."""


@dataclass(frozen=True)
class Received:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.content)


class Peer:
    """The connection of one request: what the answer is written to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))
        await self._writer.drain()

    async def json(self, found: object, status: str = "200 OK", headers: str = "") -> None:
        content = json.dumps(found).encode()
        await self.send(
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(content)}\r\n\r\n".encode(),
            content,
        )

    async def begin_events(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    async def data(self, text: str) -> None:
        content = f"data: {text}\n\n".encode()
        await self.send(f"{len(content):x}\r\n".encode(), content, b"\r\n")

    async def events(self, *found: object) -> None:
        for each in found:
            await self.data(json.dumps(each))

    async def end_events(self) -> None:
        """The end of the body, in order, whatever events came."""
        await self.send(b"0\r\n\r\n")

    async def left(self) -> None:
        """Wait until the client has closed the connection."""
        assert await asyncio.wait_for(self._reader.read(1), PATIENCE_S) == b""

    @property
    def port(self) -> int:
        """The client's, which tells its connections apart."""
        found: int = self._writer.get_extra_info("peername")[1]
        return found

    def close(self) -> None:
        """Close the connection, once what was sent is on its way."""
        self._writer.close()


Answer = Callable[[Received, Peer], Awaitable[None]]


class ScriptedEndpoint:
    """Listens from its start to its end, on a thread of its own.

    Attributes
    ----------
    received
        The requests that have come, in order.
    most
        How many were being answered at a time, at most.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.received: list[Received] = []
        self.now = 0
        self.most = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, tell: Callable[[], None]) -> None:
        """Call something on the endpoint's thread."""
        self._loop.call_soon_threadsafe(tell)

    def wait_for(self, come: Callable[[], bool]) -> None:
        """Wait until something that the endpoint's thread does has come."""
        end = time.monotonic() + PATIENCE_S
        while not come():
            assert time.monotonic() < end
            time.sleep(0.005)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _stop(self) -> None:
        self._server.close()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._one(head.decode(), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _one(
        self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        received = Received(method, path, headers, content)
        self.received.append(received)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._answer(received, Peer(reader, writer))
        finally:
            self.now -= 1
