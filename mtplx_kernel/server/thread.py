"""The endpoint: a server in a thread and an event loop of its own, until it is stopped."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import uvicorn
from starlette.types import ASGIApp

from mtplx_kernel.engine.request import check_timeout
from mtplx_kernel.errors import InvalidRequest, MTPLXError
from mtplx_kernel.server.app import make_app
from mtplx_kernel.server.connection import Connection
from mtplx_kernel.server.hosts import is_loopback
from mtplx_kernel.server.listening import BACKLOG, listen, url_of
from mtplx_kernel.server.safety import Safety
from mtplx_kernel.server.settings import HOST, Settings

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

LOGGER = logging.getLogger(__name__)

DRAIN_S = 5.0
"""How long `stop` lets open requests go on, if not told otherwise."""
NOTICE_S = 0.5
"""How long requests whose clients were cut off have to notice it."""
IDLE_S = 30
"""How long a connection may idle between two requests: longer than clients keep theirs."""
COUNT_S = 5
"""How often the metrics read the timeline, which forgets old requests."""
SLICE_S = 0.05
"""The longest wait without a look at keyboard interrupts."""
LIMITS = tuple(f.name for f in fields(Settings) if f.name.endswith(("_limit", "_timeout_s")))


class Server(uvicorn.Server):
    """uvicorn's server, which tells when it has started and can end its connections at once.

    Parameters
    ----------
    config
        As uvicorn takes it.
    started
        Set once connections are accepted.
    """

    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._told.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end."""
        for listener in sockets or ():
            # A process that was forked off has it too, and closing it here would end nothing there.
            with contextlib.suppress(OSError):  # not every system knows this
                listener.shutdown(socket.SHUT_RDWR)
        await super().shutdown(sockets)

    def cut(self) -> None:
        """Cut off every client; the application sees that it left."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def give_up(self) -> None:
        """End what goes on without a client, or has come since."""
        self.cut()
        for task in list(self.server_state.tasks):
            task.cancel()


class Endpoint:
    """What serves an application over HTTP, from the call on until `stop`.

    Stopping it leaves the engine as it is, and closing the engine leaves the endpoint: it then
    answers with 503. As a context manager it stops at the end. Its repr does not show the token.

    Parameters
    ----------
    app
        The application; `Safety` stands before it.
    settings
        Where to listen, whom to answer.
    every_while
        Called every few seconds, on the event loop.

    Raises
    ------
    InvalidRequest
        If the address or the port is not to be had.

    Attributes
    ----------
    url
        Where it is reached; the API is under ``/v1``.
    host, port
        What it listens on.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        every_while: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        begun = threading.Event()
        self._server = Server(_config(Safety(app, settings), settings, every_while), begun)
        self._token = settings.token
        self._listener = listen(settings.host, settings.port)
        self._loop = asyncio.SelectorEventLoop()
        self._failure: BaseException | None = None
        self.host: str = settings.host
        self.port: int = self._listener.getsockname()[1]
        self.url = url_of(self.host, self.port)
        self._thread = threading.Thread(
            target=self._run, args=(begun,), name=f"mtplx-endpoint-{self.port}", daemon=True
        )
        try:
            # The interpreter must not end under a server that is answering.
            atexit.register(self._stop_at_exit)
            self._thread.start()
            while not begun.wait(SLICE_S):
                pass
        except BaseException:
            self.stop(0)
            raise
        if not self._server.started:
            self.stop(0)
            why = self._failure or "the log says why"
            raise MTPLXError(f"the endpoint did not start: {why}") from self._failure

    @property
    def token(self) -> str | None:
        """What clients must send as a bearer token; None where none is asked for."""
        return self._token

    @property
    def running(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_alive() and not self._server.should_exit

    def stop(self, timeout: float | None = DRAIN_S) -> None:
        """Take no more requests, end those that are open, and free the port. Twice is no matter.

        Parameters
        ----------
        timeout
            Seconds that open requests may take to end by themselves, None for as long as they
            take; those that are left are cut off and cancelled.
        """
        check_timeout(timeout)
        self._server.should_exit = True
        if threading.current_thread() is self._thread:
            return  # a thread cannot wait for its own end
        if self._thread.ident is not None:
            self._end_thread(timeout)
        self._listener.close()
        self._loop.close()
        atexit.unregister(self._stop_at_exit)

    def _end_thread(self, timeout: float | None) -> None:
        if self._ended(timeout):
            return
        self._on_loop(self._server.cut)
        while not self._ended(NOTICE_S):
            self._on_loop(self._server.give_up)

    def _ended(self, timeout: float | None) -> bool:
        """Wait for the thread's end, at most so many seconds; whether it has come."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._thread.is_alive():
            left = SLICE_S if end is None else end - time.monotonic()
            if left <= 0:
                return False
            self._thread.join(min(left, SLICE_S))
        return True

    def _on_loop(self, action: Callable[[], None]) -> None:
        # The loop may have come to its end by itself in the meantime: then that is done.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def _stop_at_exit(self) -> None:
        self.stop(0)

    def _run(self, begun: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._server.serve(sockets=[self._listener]))
        except BaseException as error:  # told to who waits for the start, and to the log
            self._failure = error
            LOGGER.error("the endpoint %s ended", self.url, exc_info=error)
        finally:
            self._listener.close()
            begun.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<Endpoint {self.url}: {state}, {'token ****' if self._token else 'no token'}>"


def serve(
    engines: Callable[[], Engine],
    *,
    host: str = HOST,
    port: int = 0,
    token: str | Literal[False] | None = None,
    cors: Sequence[str] = (),
    **limits: float,
) -> Endpoint:
    """Serve an engine as an endpoint that speaks OpenAI's API.

    Parameters
    ----------
    engines
        Asked for the engine at every request, so it may be another one later. Where it raises
        EngineClosed, or the engine is closed, the answer is 503.
    host
        The address to listen on: the loopback's, which only programs of this machine reach, or
        another of the machine's; "0.0.0.0" is all.
    port
        0 takes any that is free.
    token
        What clients must send as a bearer token. None draws one, which `Endpoint.token` tells;
        False asks for none, and warns.
    cors
        Origins whose web pages may ask, such as ``http://localhost:3000``; "*" is any.
    **limits
        See `mtplx_kernel.server.settings.Settings`.

    Raises
    ------
    InvalidRequest
        If an option is wrong, the address is not this machine's, or the port is in use.
    """
    unknown = [name for name in limits if name not in LIMITS]
    if unknown:
        raise InvalidRequest(f"unknown option {unknown[0]!r}; allowed: {', '.join(LIMITS)}")
    if isinstance(cors, str) or not isinstance(cors, Sequence):
        raise InvalidRequest(f"cors must be a list of origins, not {cors!r}")
    drawn = secrets.token_urlsafe(32) if token is None else token
    settings = Settings(
        host=host,
        port=port,
        token=None if drawn is False else drawn,
        cors=tuple(cors),
        **cast(dict[str, Any], limits),
    )
    app = make_app(engines, settings)
    endpoint = Endpoint(app, settings, app.state.metrics.keep_up)
    if settings.token is None:
        who = "any program of this machine" if is_loopback(host) else "anyone who reaches it"
        warnings.warn(f"{endpoint.url} asks for no token: {who} may use it", stacklevel=2)
    return endpoint


async def _logging_faults(call: Callable[[], Awaitable[None]]) -> None:
    """Await a call whose faults must not end the server."""
    try:
        await call()
    except Exception:  # whatever it is, it goes to the log
        LOGGER.exception("what the endpoint does every while failed")


def _config(
    app: ASGIApp, settings: Settings, every_while: Callable[[], Awaitable[None]] | None
) -> uvicorn.Config:
    return uvicorn.Config(
        cast(Any, app),
        http=cast(type[asyncio.Protocol], partial(Connection, settings)),
        loop="asyncio",
        lifespan="on",
        ws="none",
        interface="asgi3",
        log_config=None,  # logging is the application's to configure
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        h11_max_incomplete_event_size=settings.header_limit,
        callback_notify=every_while and partial(_logging_faults, every_while),
        timeout_notify=COUNT_S,
    )
