"""One connection: uvicorn's, with deadlines for slow clients and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from mtplx_kernel.server.errors import APIError
from mtplx_kernel.server.safety import headers_too_large, too_many_connections
from mtplx_kernel.server.settings import Settings

LOGGER = logging.getLogger(__name__)
# What any stranger can cause by sending nonsense is no news for whoever works in the notebook.
LOGGER.setLevel(logging.ERROR)


class Connection(H11Protocol):
    """A client's connection. Bodies have their deadline in `safety`; here are the other two.

    A client has so long to send the headers of a request, counted from the connection or from the
    first byte after the request before, and an answer waits so long for a client that reads
    nothing of it. Either ends the connection, and with it the request.

    Parameters
    ----------
    settings
        The deadlines and limits.
    """

    def __init__(
        self,
        settings: Settings,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = LOGGER
        self.access_log = False
        self._settings = settings
        self._headers_due = Deadline(self.loop, settings.header_timeout_s, self._headers_late)
        self._reading_due = Deadline(self.loop, settings.stall_timeout_s, self._stalled)
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client, or refuse one too many."""
        super().connection_made(transport)
        # Any byte that the client has not taken counts as waiting.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > self._settings.connection_limit:
            self._refuse(too_many_connections())
            return
        self._headers_due.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._headers_due.stop()
        self._reading_due.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        super().data_received(data)
        whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if whole and len(self.conn.trailing_data[0]) <= self._settings.body_limit:
            # uvicorn reads no further before the answer is sent, and would not hear a client go.
            self.flow.resume_reading()
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._headers_due.stop()
        else:
            self._headers_due.start()

    def on_response_complete(self) -> None:
        """Go on to the next request, of which a part may have come already."""
        super().on_response_complete()
        if self._begun and self.conn.their_state is h11.IDLE:
            self._headers_due.start()

    def pause_writing(self) -> None:
        """Note that the client does not take what it is sent."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._reading_due.start()

    def resume_writing(self) -> None:
        """Note that the client has taken all that it was sent."""
        super().resume_writing()
        self._reading_due.stop()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP request; called where h11 has raised."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if hint == 431:
            self._refuse(headers_too_large(self._settings.header_limit))
        else:  # an unknown transfer coding too: what a client did wrong is no failure of the server
            self._refuse(APIError(400, f"this is no HTTP request: {error}", code="bad_request"))

    @property
    def _begun(self) -> bool:
        """Whether more has come than what is read yet."""
        return bool(self.conn.trailing_data[0])

    def _headers_late(self) -> None:
        if self._begun:
            seconds = self._settings.header_timeout_s
            self._refuse(
                APIError(
                    408, f"the headers did not come within {seconds:g} s", code="request_timeout"
                )
            )
        else:
            self.transport.close()

    def _stalled(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left == self._unread:
            self.transport.abort()
            return
        # A long answer over a slow line: some of it was read.
        self._unread = left
        self._reading_due.stop()
        self._reading_due.start()

    def _refuse(self, error: APIError) -> None:
        """Answer with an error, where an answer is still due, and close the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # its application has nobody to answer any more
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body()).encode()
            lines = {
                **error.headers,
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
            }
            asked = self.cycle.scope["method"] if self.conn.our_state is h11.SEND_RESPONSE else ""
            for event in (
                h11.Response(status_code=error.status, headers=list(lines.items())),
                h11.Data(data=b"" if asked == "HEAD" else body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Deadline:
    """Something that happens unless it is stopped in time.

    Parameters
    ----------
    loop
        Whose clock counts.
    seconds
        How long there is from `start`.
    late
        Called when the time is over.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._late = late
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to count; no matter if it has begun."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._late)

    def stop(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
