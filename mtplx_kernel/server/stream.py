"""Answers as server-sent events, sent as the engine says them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mtplx_kernel.errors import MTPLXError
from mtplx_kernel.server.answers import Answer, ErrorAnswer
from mtplx_kernel.server.errors import of_engine, of_fault
from mtplx_kernel.server.exchange import Exchange, disconnected

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends answers as events until there are no more or the client has gone.

    Parameters
    ----------
    answers
        What to send.
    exchange
        Where they come from; it is closed at the end, whichever end that is.
    """

    media_type = "text/event-stream"

    def __init__(self, answers: AsyncGenerator[Answer, None], exchange: Exchange) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._answers = answers
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, and listen for the client's going at the same time."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            gone.cancel()
            self._exchange.close()

    async def _send(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async with aclosing(self._events()) as events:
            async for body in events:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """The answers as events; a failure is the last, since the status has been sent.

        A fault of the server's own goes on from there: whoever runs it logs it.
        """
        try:
            async with aclosing(self._answers) as answers:
                async for answer in answers:
                    yield event(answer)
        except MTPLXError as error:
            yield event(ErrorAnswer.model_validate(of_engine(error).body()))
        except Exception:
            yield event(ErrorAnswer.model_validate(of_fault().body()))
            raise
        else:
            yield DONE


def event(answer: Answer) -> bytes:
    """One answer as an event."""
    return b"data: " + answer.json_bytes() + b"\n\n"
