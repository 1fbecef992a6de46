"""The way to an endpoint and back over httpx: tries, the model's name, and errors in our words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from mtplx_kernel.client.calls import MODELS, Call, Settings
from mtplx_kernel.client.chunks import StreamedAnswer
from mtplx_kernel.client.refusals import body_of, refusal
from mtplx_kernel.client.retries import Retries
from mtplx_kernel.errors import EndpointError, EndpointLost, InvalidRequest, RequestTimeout

CONNECT_S = 10.0
LISTED = 8
"""How many models an error names."""


class Wire:
    """The connections to one endpoint, and the model that it was found to serve.

    Parameters
    ----------
    transport
        What carries the requests; None is the network.
    """

    def __init__(
        self,
        settings: Settings,
        retries: Retries,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self._settings = settings
        self._retries = retries
        self._served: str | None = None
        self._http = httpx.AsyncClient(
            headers=settings.headers,
            # How many connections there are is the callers' choice: none waits for another's.
            timeout=httpx.Timeout(
                settings.timeout, connect=min(CONNECT_S, settings.timeout or CONNECT_S), pool=None
            ),
            limits=httpx.Limits(max_keepalive_connections=settings.max_batch_size),
            trust_env=not settings.local,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, call: Call) -> httpx.Response:
        """Send what asks for an answer, in the name of the model that is served if it has none.

        Returns
        -------
        httpx.Response
            Successful, and open: the caller reads it and closes it.
        """
        if call.body is not None and "model" in call.body:
            return await self.send(call)
        name = self._served or await self._the_model()
        try:
            return await self.send(call.of_model(name))
        except EndpointError as error:
            if error.code != "model_not_found":
                raise
        # The endpoint has changed its model since.
        return await self.send(call.of_model(await self._the_model()))

    async def send(self, call: Call) -> httpx.Response:
        """Send a call, again where the endpoint had not begun; see `ask`."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._try(call)
            except (EndpointError, EndpointLost) as error:
                pause_s = self._retries.pause_s(tries, error)
                if pause_s is None:
                    raise
            await self._retries.sleep(pause_s)

    async def read(self, response: httpx.Response) -> dict[str, Any]:
        """The object that a response holds; closes it."""
        try:
            with self.told():
                found = body_of(await response.aread())
        finally:
            await response.aclose()
        if not isinstance(found, dict):
            raise self.strange(f"is no JSON object but {found!r:.80}")
        return found

    async def models(self) -> list[str]:
        """The names of the models that the endpoint serves."""
        listed = (await self.read(await self.send(MODELS))).get("data")
        if not isinstance(listed, list):
            raise self.strange("lists no models")
        return [str(each["id"]) for each in listed if isinstance(each, Mapping) and "id" in each]

    @contextmanager
    def told(self, answer: StreamedAnswer | None = None) -> Iterator[None]:
        """Raise httpx's errors as ours; with what had come of a streamed answer."""
        url = self._settings.base_url
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EndpointLost(
                f"no endpoint answers at {url} ({_cause(error)}): is it running?", connected=False
            ) from error
        except httpx.TimeoutException as error:
            raise RequestTimeout(
                f"cancelled: nothing came from {url} for {self._settings.timeout:g} s"
            ) from error
        except httpx.RequestError as error:
            raise self.broken(_cause(error), answer) from error

    def broken(self, why: str, answer: StreamedAnswer | None) -> EndpointLost:
        """The error of a connection that ended too early."""
        return EndpointLost(
            f"the answer from {self._settings.base_url} broke off: {why}",
            connected=True,
            completion=None if answer is None else answer.completion,
        )

    def strange(self, what: str) -> EndpointError:
        """The error of an answer that is not what OpenAI's interface says."""
        return EndpointError(
            f"the answer from {self._settings.base_url} {what}: is it an OpenAI endpoint?"
        )

    async def _the_model(self) -> str:
        names = await self.models()
        if not names:
            raise self.strange("lists no models")
        if len(names) > 1:
            raise InvalidRequest(
                f"{self._settings.base_url} serves several models, name one by model=...: "
                f"{', '.join(names[:LISTED])}{', ...' if len(names) > LISTED else ''}"
            )
        self._served = names[0]
        return self._served

    async def _try(self, call: Call) -> httpx.Response:
        if self._http.is_closed:
            raise InvalidRequest("the client is closed: make another")
        content = call.content
        request = self._http.build_request(
            call.method,
            self._settings.base_url + call.path,
            content=content,
            headers=None if content is None else {"Content-Type": "application/json"},
        )
        with self.told():
            response = await self._http.send(request, stream=True)
            if response.is_success:
                return response
            try:
                body = body_of(await response.aread())
            finally:
                await response.aclose()
        raise refusal(
            body,
            f"{call.path} refused ({response.status_code} {response.reason_phrase})",
            status=response.status_code,
            retry_after=response.headers.get("retry-after"),
            mode_unasked=call.mode_unasked,
        )


def _cause(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
