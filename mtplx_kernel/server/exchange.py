"""From an HTTP request to requests of the engine, and what those say back on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from mtplx_kernel.engine.request import FinishReason, Generation, Handle, TokenLogprob
from mtplx_kernel.errors import EngineClosed
from mtplx_kernel.server.post import Post

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Question:
    """What one choice asks of the engine: a prompt, and options as `Engine.submit` takes them."""

    prompt: Any
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Said:
    """A token of one choice: the text that it released, and what is reported of it."""

    index: int
    text: str
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class Ended:
    """One choice has ended."""

    index: int
    handle: Handle

    def generation(self) -> Generation:
        """What came of it.

        Raises
        ------
        RequestFailed, EngineClosed
            If it ended with an error, or because the engine was closed.
        """
        generation = self.handle.result()
        if generation.finish_reason in (FinishReason.CANCELLED, FinishReason.INTERRUPTED):
            raise EngineClosed("the request was cancelled on the server: its engine was closed")
        return generation


Event = Said | Ended


class Exchange:
    """The engine's requests of one HTTP request. Belongs to the event loop that made it.

    Parameters
    ----------
    submitter
        The one thread that submits, so that requests are queued in the order in which they came
        and a long prompt holds up nobody who streams.
    post
        Brings what the engine says to the event loop.
    """

    def __init__(self, submitter: ThreadPoolExecutor, post: Post) -> None:
        self._submitter = submitter
        self._post = post
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._handles: list[Handle] = []
        self._closed = False

    async def open(self, engine: Engine, questions: Sequence[Question], *, live: bool) -> None:
        """Submit one request a question.

        Parameters
        ----------
        live
            Whether to be told of each token; else only of the ends.

        Raises
        ------
        InvalidRequest, QueueFull, EngineClosed
            If one is refused; then none goes on.
        """

        def submit() -> None:
            read: dict[int, tuple[int, ...]] = {}
            for index, question in enumerate(questions):
                if self._closed:
                    return
                # Choices of one prompt have it read once.
                prompt = read.get(id(question.prompt), question.prompt)
                handle = self._submit(engine, index, replace(question, prompt=prompt), live)
                read[id(question.prompt)] = handle.request.prompt_ids

        try:
            await self._post.loop.run_in_executor(self._submitter, submit)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancel what still runs; what has ended is left alone. Waits for no one."""
        self._closed = True
        for handle in list(self._handles):
            handle.cancel()

    async def batches(self) -> AsyncIterator[list[Event]]:
        """What was said since the last batch, until every choice has ended."""
        left = len(self._handles)
        while left:
            batch = [await self._events.get()]
            while not self._events.empty():
                batch.append(self._events.get_nowait())
            left -= sum(isinstance(event, Ended) for event in batch)
            yield batch

    async def generations(self) -> list[Generation]:
        """Wait for all choices; those of a request that has failed do not go on.

        Raises
        ------
        RequestFailed, EngineClosed
            For the first that fails.
        """
        ended: dict[int, Generation] = {}
        async for batch in self.batches():
            for event in batch:
                if isinstance(event, Ended):
                    ended[event.index] = event.generation()
        return [ended[index] for index in sorted(ended)]

    def _submit(self, engine: Engine, index: int, question: Question, live: bool) -> Handle:
        teller = _Teller(self._tell, index)
        told: dict[str, Any] = {}
        if live:
            told["on_token"] = teller.on_token
            if question.options.get("logprobs") is not None:
                told["on_logprob"] = teller.on_logprob
        handle = engine.submit(question.prompt, **question.options, **told)
        self._handles.append(handle)
        if self._closed:  # the client went while the prompt was read
            handle.cancel()
        handle.when_done(lambda handle: self._tell(Ended(index, handle)))
        return handle

    def _tell(self, event: Event) -> None:
        """Hand an event over to the loop (engine's thread).

        A loop that has ended refuses it, which ends a request that nobody waits for.
        """
        self._post.send(self._events.put_nowait, event)


class _Teller:
    """Puts a token and what is reported of it together (engine's thread)."""

    def __init__(self, tell: Callable[[Event], None], index: int) -> None:
        self._tell = tell
        self._index = index
        self._logprob: TokenLogprob | None = None

    def on_logprob(self, logprob: TokenLogprob) -> None:
        self._logprob = logprob

    def on_token(self, _: int, text: str) -> None:
        self._tell(Said(self._index, text, self._logprob))


async def while_connected(receive: Receive, exchange: Exchange) -> list[Generation]:
    """What came of an exchange; a client that goes away cancels it.

    Raises
    ------
    ClientDisconnect
        If it has gone.
    """
    answer = asyncio.ensure_future(exchange.generations())
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ClientDisconnect
    finally:
        answer.cancel()
        gone.cancel()
        exchange.close()


async def disconnected(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
