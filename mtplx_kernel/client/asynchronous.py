"""The client for asyncio: what to ask an endpoint, as coroutines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Self

import anyio
import httpx

from mtplx_kernel.client.answers import Completion, completion_of
from mtplx_kernel.client.calls import (
    STATUS,
    Call,
    ConcurrencyMode,
    Message,
    Prompt,
    Settings,
    check_options,
    conversation,
)
from mtplx_kernel.client.chunks import StreamedAnswer
from mtplx_kernel.client.retries import Retries
from mtplx_kernel.client.sse import EventDecoder
from mtplx_kernel.client.wire import Wire
from mtplx_kernel.errors import InvalidRequest, MTPLXError

PATIENCE_S = 600.0
END = b"[DONE]"


class AsyncTextStream:
    """The text of one answer as it comes; what it was and cost is in `completion`."""

    def __init__(self, pieces: AsyncGenerator[str, None], answer: StreamedAnswer) -> None:
        self._pieces = pieces
        self._answer = answer

    @property
    def completion(self) -> Completion:
        """What has come: the whole answer once the stream has ended."""
        return self._answer.completion

    async def aclose(self) -> None:
        """Stop reading, and cancel the request if it has not ended."""
        await self._pieces.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncMTPLXClient:
    """A client to an endpoint, for asyncio; `MTPLXClient` has the same methods for other programs.

    Leaving a call by an exception, such as a cancellation, closes its connection, and that cancels
    the request at the endpoint. A client belongs to one event loop, where any number of tasks may
    share it.

    Parameters
    ----------
    base_url
        Such as ``http://127.0.0.1:8000``, with or without ``/v1`` at the end.
    model
        None takes the one that the endpoint serves.
    concurrency_mode
        "mtp" and "ar" ask for that generation mode; "hyper" takes the endpoint's hyper routes, and
        leaves the generation mode to it. None sends nothing that OpenAI's interface does not
        have, for endpoints of others.
    max_batch_size
        How many requests of a batch are sent at a time.
    token
        The endpoint's bearer token; None sends none.
    timeout
        The longest wait for anything to arrive, in seconds; None has no limit.
    retries
        When a request is sent again; None for the defaults of `Retries`.
    transport
        What carries the requests in place of the network.

    Raises
    ------
    InvalidRequest
        For an argument that cannot be used. Methods raise it before anything is sent.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        concurrency_mode: ConcurrencyMode | None = "mtp",
        max_batch_size: int = 8,
        token: str | None = None,
        *,
        timeout: float | None = PATIENCE_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = Settings(base_url, model, concurrency_mode, max_batch_size, token, timeout)
        self._wire = Wire(self._settings, retries or Retries(), transport)

    async def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Ask for one answer and wait for it.

        Parameters
        ----------
        prompt
            Text or token ids, which are continued as they stand, or a list of messages, which are
            answered as by `chat`.
        **options
            Fields of the request as the endpoint names them: max_tokens, temperature, seed, stop,
            depth, ... Those that are None are left out.

        Raises
        ------
        EndpointError
            If the endpoint refuses, or fails; where it is busy, after retries.
        EndpointLost
            If no endpoint answers, or the connection breaks.
        RequestTimeout
            If nothing arrives in time.
        """
        response = await self._wire.ask(self._settings.call(prompt, options))
        raw = await self._wire.read(response)
        try:
            return completion_of(raw)
        except ValueError as error:
            raise self._wire.strange(str(error)) from error

    async def chat(
        self, messages: str | Sequence[Message], *, system: str | None = None, **options: Any
    ) -> Completion:
        """Ask for the answer to a conversation; see `generate`.

        Parameters
        ----------
        messages
            Each with a role and content; text becomes one message of the user.
        system
            A system message to put first.
        """
        return await self.generate(conversation(messages, system), **options)

    def stream(self, prompt: Prompt, **options: Any) -> AsyncTextStream:
        """Ask for one answer and iterate over its text as it comes; see `generate`.

        The request is sent when the first piece is asked for. Closing the stream, leaving its
        context or letting go of it cancels the request.
        """
        answer = StreamedAnswer()
        call = self._settings.call(prompt, options, streamed=True)
        return AsyncTextStream(self._pieces(call, answer), answer)

    async def batch_generate(
        self, prompts: Sequence[Prompt], **options: Any
    ) -> list[Completion | MTPLXError]:
        """Ask for answers to several prompts, each ending on its own; see `generate`.

        At most `max_batch_size` are asked for at a time, the first ones first.

        Returns
        -------
        list
            In order: each prompt's answer, or the error that refused or ended it.
        """
        if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence):
            raise InvalidRequest("prompts must be a list of prompts; generate takes a single one")
        check_options(options)
        waiting = iter(enumerate(prompts))
        ended: dict[int, Completion | MTPLXError] = {}

        async def work() -> None:
            for place, prompt in waiting:
                try:
                    ended[place] = await self.generate(prompt, **options)
                except MTPLXError as error:
                    ended[place] = error

        async with anyio.create_task_group() as group:
            for _ in range(min(self._settings.max_batch_size, len(prompts))):
                group.start_soon(work)
        return [ended[place] for place in range(len(prompts))]

    async def status(self) -> dict[str, Any]:
        """What the endpoint's engine has loaded and does, as `Engine.status` tells it."""
        return await self._wire.read(await self._wire.send(STATUS))

    async def models(self) -> list[str]:
        """The names of the models that the endpoint serves."""
        return await self._wire.models()

    async def aclose(self) -> None:
        """Close the connections. Closing twice does nothing."""
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._settings.description}>"

    async def _pieces(self, call: Call, answer: StreamedAnswer) -> AsyncGenerator[str, None]:
        response = await self._wire.ask(call)
        try:
            kind = response.headers.get("content-type", "unknown")
            if not kind.startswith("text/event-stream"):
                raise self._wire.strange(f"is no stream of events but of type {kind}")
            events = EventDecoder()
            with self._wire.told(answer):
                async for chunk in response.aiter_bytes():
                    for data in events.feed(chunk):
                        if data == END:
                            return
                        if piece := answer.add(data):
                            yield piece
            if not answer.finished:
                raise self._wire.broken("the stream has no end", answer)
        finally:
            await response.aclose()
