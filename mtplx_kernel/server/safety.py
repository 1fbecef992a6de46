"""What a request must pass before the application sees it: who asks, from where, and how much."""

from __future__ import annotations

import asyncio
import hmac
import json
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtplx_kernel.server.errors import RETRY_AFTER_S, SERVER, APIError
from mtplx_kernel.server.hosts import Names, is_listed, may_ask
from mtplx_kernel.server.settings import Settings

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/docs", "/openapi.json"})
"""Asked by watchdogs and browsers, which have no token: they tell nothing of anybody's work."""
METHODS = "GET, POST, OPTIONS"
MOST_HEADERS = 100
PREFLIGHT_S = 600
"""How long a browser may remember the answer to a preflight."""
LINGER_S = 1.0
"""How long what a refused client still sends is read: closing at once could lose the answer."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")


class Safety:
    """ASGI middleware that answers by itself what must not reach the application.

    In this order: the size of the headers, Host, Origin, CORS preflights, the token, the body. The
    body is read here, whole and in time, so that the application never waits for a slow client.

    Parameters
    ----------
    app
        What gets the requests that pass.
    settings
        The token, the listed origins, the limits.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._token = None if settings.token is None else settings.token.encode()
        self._names = Names(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope["headers"])
        origin = headers.one("origin")
        if origin is not None and is_listed(origin, self._settings.cors):
            send = _with_headers(send, _cors(origin))
        try:
            self._check_place(scope, headers)
            if _is_preflight(scope["method"], headers):
                await _answer_preflight(headers, send)
                return
            self._check_token(scope["path"], headers)
            if headers.has_body:
                receive = _replaying(await self._body(headers, receive), receive)
        except APIError as refusal:
            await refuse(refusal, headers, receive, send)
            return
        except ClientGone:
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server knows, and leaves the body out
        await self._app(scope, receive, send)

    def _check_place(self, scope: Scope, headers: Headers) -> None:
        """Refuse headers that are too large, and names and origins that are not ours."""
        limit = self._settings.header_limit
        if len(headers) > MOST_HEADERS:
            raise APIError(431, f"at most {MOST_HEADERS} headers", code="headers_too_large")
        if headers.size + len(scope["raw_path"]) + len(scope["query_string"]) > limit:
            raise headers_too_large(limit)
        host = headers.one("host")
        if host is None or host not in self._names:
            raise APIError(
                403,
                f"this endpoint does not go by the name {host!r}: ask it by the address that it "
                "listens on",
                code="host_not_allowed",
            )
        if "origin" not in headers:
            return
        origin = headers.one("origin")
        if origin is None or not may_ask(origin, host, self._settings.cors):
            raise APIError(
                403,
                f"pages of {origin!r} may not ask: the endpoint was not opened with this origin in "
                "its cors list",
                code="origin_not_allowed",
            )

    def _check_token(self, path: str, headers: Headers) -> None:
        if self._token is None or path in OPEN_PATHS:
            return
        if "authorization" not in headers:
            raise _unauthorised("no token: send the header 'Authorization: Bearer TOKEN'")
        scheme, _, given = (headers.one("authorization") or "").partition(" ")
        # The time that this takes tells nothing of where the two differ.
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        if scheme.lower() != "bearer" or not right:
            raise _unauthorised("the token is not this endpoint's", ', error="invalid_token"')

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Read the body.

        Raises
        ------
        APIError
            If it is too large, or does not come in time.
        ClientGone
            If the client left.
        """
        limit, body = self._settings.body_limit, bytearray()
        if int(headers.one("content-length") or 0) > limit:
            raise _body_too_large(limit)
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise _body_too_large(limit)
                    more = message.get("more_body", False)
        except TimeoutError:
            seconds = self._settings.body_timeout_s
            raise APIError(
                408, f"the body did not come within {seconds:g} s", code="request_timeout"
            ) from None
        return bytes(body)


class ClientGone(Exception):
    """The client left before its request was whole."""


class Headers:
    """The headers of a request, for the few questions that are asked of them.

    Parameters
    ----------
    pairs
        Names, in lower case, and values, as ASGI has them.
    """

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self.size = sum(len(name) + len(value) + len(": \r\n") for name, value in pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, name: str) -> bool:
        return bool(self._values(name))

    def one(self, name: str) -> str | None:
        """The value of a header; None unless it came exactly once."""
        values = self._values(name)
        return values[0].decode("latin-1") if len(values) == 1 else None

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        length = self.one("content-length")
        return "transfer-encoding" in self or (length is not None and int(length) > 0)

    def _values(self, name: str) -> list[bytes]:
        return [value for each, value in self._pairs if each == name.encode()]


async def refuse(error: APIError, headers: Headers, receive: Receive, send: Send) -> None:
    """Answer with an error; where a body follows, close the connection after it."""
    body = json.dumps(error.body()).encode()
    lines = [("content-type", "application/json"), ("content-length", str(len(body)))]
    lines += [*error.headers.items(), *([("connection", "close")] if headers.has_body else [])]
    encoded = [(name.encode(), value.encode()) for name, value in lines]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    if headers.has_body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await _linger(receive)
        body = b""
    await send({"type": "http.response.body", "body": body})


def headers_too_large(limit: int) -> APIError:
    """The refusal of headers over the limit."""
    return APIError(
        431,
        f"the first line and the headers may take {limit} bytes, and these take more",
        code="headers_too_large",
    )


def too_many_connections() -> APIError:
    """The refusal of a connection over the limit."""
    return APIError(
        503,
        "too many connections: try again when some have ended",
        type=SERVER,
        code="too_many_connections",
        headers={"retry-after": str(RETRY_AFTER_S), "connection": "close"},
    )


def _body_too_large(limit: int) -> APIError:
    return APIError(
        413, f"the body may take {limit} bytes, and this one takes more", code="body_too_large"
    )


def _unauthorised(message: str, challenge: str = "") -> APIError:
    asked = {"www-authenticate": f'Bearer realm="mtplx-kernel"{challenge}'}
    return APIError(401, message, code="invalid_api_key", headers=asked)


async def _linger(receive: Receive) -> None:
    """Read what still comes, for a while."""
    try:
        async with asyncio.timeout(LINGER_S):
            while (message := await receive())["type"] == "http.request":
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _replaying(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body that was read, and then what else comes."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _cors(origin: str) -> list[tuple[str, str]]:
    return [
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", "Retry-After"),
        ("vary", "Origin"),
    ]


def _is_preflight(method: str, headers: Headers) -> bool:
    asks = "origin" in headers and "access-control-request-method" in headers
    return method == "OPTIONS" and asks


async def _answer_preflight(headers: Headers, send: Send) -> None:
    """Tell a browser that a page of a listed origin may ask, and with which headers."""
    asked = headers.one("access-control-request-headers") or ""
    allowed = asked if _HEADER_NAMES.fullmatch(asked) else "authorization, content-type"
    lines = [
        ("access-control-allow-methods", METHODS),
        ("access-control-allow-headers", allowed),
        ("access-control-max-age", str(PREFLIGHT_S)),
    ]
    encoded = [(name.encode(), value.encode()) for name, value in lines]
    await send({"type": "http.response.start", "status": 204, "headers": encoded})
    await send({"type": "http.response.body", "body": b""})


def _with_headers(send: Send, lines: list[tuple[str, str]]) -> Send:
    """A send that adds headers to the answer."""
    added = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return sending
