"""The client without asyncio: the calls of the asynchronous one, waited for."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, Self

import httpx

from mtplx_kernel.client.answers import Completion
from mtplx_kernel.client.asynchronous import PATIENCE_S, AsyncMTPLXClient, AsyncTextStream
from mtplx_kernel.client.background import Background
from mtplx_kernel.client.calls import ConcurrencyMode, Message, Prompt
from mtplx_kernel.client.retries import Retries
from mtplx_kernel.errors import MTPLXError


class TextStream:
    """The text of one answer as it comes; what it was and cost is in `completion`."""

    def __init__(
        self, client: MTPLXClient, background: Background, pieces: AsyncTextStream
    ) -> None:
        self._client = client  # lives as long as its streams do
        self._background = background
        self._pieces = pieces

    @property
    def completion(self) -> Completion:
        """What has come: the whole answer once the stream has ended."""
        return self._pieces.completion

    def close(self) -> None:
        """Stop reading, and cancel the request if it has not ended."""
        if not self._background.stopped:  # else it ended with the client
            self._background.run(self._pieces.aclose())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            return self._background.run(self._pieces.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
        except KeyboardInterrupt:
            # The traceback, which a notebook keeps, would keep a stream that is left.
            with contextlib.suppress(RuntimeError):  # it is ending already
                self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MTPLXClient:
    """A client to an endpoint; `AsyncMTPLXClient` has the same methods as coroutines.

    An interrupt of a call, in a notebook too, cancels its requests at the endpoint. Any number of
    threads may share a client. Its connections live on a thread of its own, which ends with
    `close`, at the end of the process, or when nothing refers to the client any more.

    The parameters, the methods' arguments and the errors are those of `AsyncMTPLXClient`.
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
        self._inner = AsyncMTPLXClient(
            base_url,
            model,
            concurrency_mode,
            max_batch_size,
            token,
            timeout=timeout,
            retries=retries,
            transport=transport,
        )
        self._background = Background("mtplx-client", self._inner.aclose)
        self._let_go = weakref.finalize(self, self._background.stop)

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Ask for one answer and wait for it."""
        return self._background.run(self._inner.generate(prompt, **options))

    def chat(
        self, messages: str | Sequence[Message], *, system: str | None = None, **options: Any
    ) -> Completion:
        """Ask for the answer to a conversation."""
        return self._background.run(self._inner.chat(messages, system=system, **options))

    def stream(self, prompt: Prompt, **options: Any) -> TextStream:
        """Ask for one answer and iterate over its text as it comes."""
        return TextStream(self, self._background, self._inner.stream(prompt, **options))

    def batch_generate(
        self, prompts: Sequence[Prompt], **options: Any
    ) -> list[Completion | MTPLXError]:
        """Ask for answers to several prompts, each ending on its own."""
        return self._background.run(self._inner.batch_generate(prompts, **options))

    def status(self) -> dict[str, Any]:
        """What the endpoint's engine has loaded and does."""
        return self._background.run(self._inner.status())

    def models(self) -> list[str]:
        """The names of the models that the endpoint serves."""
        return self._background.run(self._inner.models())

    def close(self) -> None:
        """End what runs, and close the connections. Closing twice does nothing."""
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncMTPLXClient", type(self).__name__, 1)
