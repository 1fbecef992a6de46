"""Many clients at once: most read on, some read slowly, leave, break off or ask for nonsense."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.conformance.streams import Broken, Reader, Told, whole
from tests.conformance.wishes import STREAM, Wish, wrong_ones

PATIENCE_S = 60.0
"""What takes longer than this has hung."""
BUSY = 503
SMALL_BUFFER = 4096
"""Bytes that a slow client's system takes for it: so what it does not read waits at the server."""
BREAK_OFF = struct.pack("ii", 1, 0)
"""SO_LINGER that closes a connection as a crash would, with no goodbye."""


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint that may be asked: where it is, its token, and the name of its model."""

    url: str
    token: str
    model: str

    @property
    def headers(self) -> dict[str, str]:
        """What every request has."""
        return {"authorization": f"Bearer {self.token}"}


@dataclass(slots=True)
class Outcome:
    """What came of it.

    Attributes
    ----------
    counts
        How often a client did what it is for, by its kind; "busy" counts answers with status 503.
    tokens
        Of all whole answers.
    faults
        What must not happen, a line each.
    """

    counts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    faults: list[str] = field(default_factory=list)


class Busy(Exception):
    """The endpoint has no place now."""


async def load(
    target: Target, pool: Sequence[Wish], *, clients: int, seconds: float, seed: int
) -> Outcome:
    """Have clients ask for so long, each one request after the other.

    Every whole answer is compared with that to the same request alone, which is asked for first;
    at the end the endpoint must be empty, and give those answers again.

    Parameters
    ----------
    pool
        Good requests; each is asked many times over.
    seed
        Draws what each client does.
    """
    outcome = Outcome()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    async with httpx.AsyncClient(
        base_url=target.url, headers=target.headers, timeout=PATIENCE_S, limits=limits
    ) as client:
        alone = [await _answer(client, wish) for wish in pool]
        until = time.monotonic() + seconds
        crowd = [
            _Client(target, client, pool, alone, outcome, random.Random(f"{seed}-{number}"))
            for number in range(clients)
        ]
        await asyncio.gather(*(each.ask_until(until) for each in crowd))
        await _is_empty(client, outcome)
        for wish, before in zip(pool, alone, strict=True):
            _compare(outcome, "afterwards", wish, before, await _answer(client, wish))
    return outcome


class _Client:
    """One client, which draws what it does next."""

    def __init__(
        self,
        target: Target,
        client: httpx.AsyncClient,
        pool: Sequence[Wish],
        alone: Sequence[Told],
        outcome: Outcome,
        drawn: random.Random,
    ) -> None:
        self._target = target
        self._client = client
        self._pool = pool
        self._alone = alone
        self._outcome = outcome
        self._drawn = drawn
        self._wrong = wrong_ones(target.model)
        self._kinds: dict[Callable[[], Awaitable[None]], int] = {
            self._reads: 8,
            self._takes: 2,
            self._reads_slowly: 2,
            self._leaves: 3,
            self._cancels: 2,
            self._breaks_off: 2,
            self._asks_wrong: 3,
        }

    async def ask_until(self, until: float) -> None:
        """Go on for so long; whatever goes wrong is noted, and ends nothing."""
        while time.monotonic() < until:
            (kind,) = self._drawn.choices(list(self._kinds), list(self._kinds.values()))
            name = kind.__name__.strip("_").replace("_", " ")
            try:
                await kind()
            except Busy:
                self._outcome.counts["busy"] += 1
                await asyncio.sleep(0.1)
            except Exception as error:  # a fault of the endpoint, or one of ours: told either way
                self._outcome.faults.append(f"{name}: {type(error).__name__}: {error}")
            else:
                self._outcome.counts[name] += 1

    async def _reads(self) -> None:
        number = self._number()
        self._check("reads", number, await _stream(self._client, self._pool[number]))

    async def _takes(self) -> None:
        number = self._number()
        self._check("takes", number, await _answer(self._client, self._pool[number]))

    async def _reads_slowly(self) -> None:
        number = self._number()
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)]
        async with httpx.AsyncClient(
            base_url=self._target.url,
            headers=self._target.headers,
            timeout=PATIENCE_S,
            transport=httpx.AsyncHTTPTransport(socket_options=small),
        ) as client:
            pause = self._drawn.uniform(0.001, 0.03)
            self._check("slowly", number, await _stream(client, self._pool[number], pause))

    async def _leaves(self) -> None:
        """Close the connection in the middle of a stream."""
        wish, events = self._pool[self._number()], self._drawn.randint(0, 40)
        body = {**wish.endless(), **STREAM}
        async with self._client.stream("POST", wish.path, json=body) as response:
            _check_status(response, await _error(response))
            async for _ in response.aiter_lines():
                if events == 0:
                    return
                events -= 1

    async def _cancels(self) -> None:
        """Lose the patience for an answer that comes at once or never."""
        wish = self._pool[self._number()]
        asking = self._client.post(wish.path, json=wish.endless())
        try:
            async with asyncio.timeout(self._drawn.uniform(0, 0.2)):
                response = await asking
        except TimeoutError:
            return
        _check_status(response, response.text)

    async def _breaks_off(self) -> None:
        """Crash while the request is sent, or before it is answered."""
        wish = self._pool[self._number()]
        body = json.dumps({**wish.endless(), **STREAM}).encode()
        head = (
            f"POST {wish.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self._target.token}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        url = httpx.URL(self._target.url)
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(request[: self._drawn.randint(1, len(request))])
        await writer.drain()
        await asyncio.sleep(self._drawn.uniform(0, 0.1))
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, BREAK_OFF)
        writer.close()

    async def _asks_wrong(self) -> None:
        wrong = self._drawn.choice(self._wrong)
        stream = self._drawn.random() < 0.5
        response = await self._client.post(wrong.path, json={**wrong.body, "stream": stream})
        found = response.json()["error"]
        if (response.status_code, found["param"]) != (wrong.status, wrong.param):
            raise Broken(f"{wrong.body} was answered with {response.status_code}: {found}")

    def _number(self) -> int:
        return self._drawn.randrange(len(self._pool))

    def _check(self, kind: str, number: int, told: Told) -> None:
        _compare(self._outcome, kind, self._pool[number], self._alone[number], told)


def _compare(outcome: Outcome, kind: str, wish: Wish, alone: Told, told: Told) -> None:
    outcome.tokens += told.completion_tokens
    if told != alone:
        outcome.faults.append(f"{kind}: {wish} gave {told}, and alone {alone}")


async def _stream(client: httpx.AsyncClient, wish: Wish, pause: float = 0) -> Told:
    """Read a stream to its end.

    Parameters
    ----------
    pause
        Seconds between two lines.
    """
    reader = Reader()
    async with client.stream("POST", wish.path, json=wish.streamed()) as response:
        _check_status(response, await _error(response))
        async for line in response.aiter_lines():
            reader.line(line)
            if pause:
                await asyncio.sleep(pause)
    return reader.told()


async def _answer(client: httpx.AsyncClient, wish: Wish) -> Told:
    response = await client.post(wish.path, json=wish.body)
    _check_status(response, response.text)
    return whole(response.json())


async def _error(response: httpx.Response) -> str:
    return "" if response.is_success else (await response.aread()).decode()


def _check_status(response: httpx.Response, said: str) -> None:
    if response.status_code == BUSY:
        raise Busy
    if response.status_code != 200:
        raise Broken(f"status {response.status_code}: {said[:200]}")


async def _is_empty(client: httpx.AsyncClient, outcome: Outcome) -> None:
    """Wait until nothing runs and nothing waits."""
    until = time.monotonic() + PATIENCE_S
    while True:
        status: dict[str, Any] = (await client.get("/status")).json()
        left = status["running"], status["queue"]["waiting"]
        if left == (0, 0):
            return
        if time.monotonic() > until:
            outcome.faults.append(f"{left[0]} still run and {left[1]} still wait")
            return
        await asyncio.sleep(0.05)
