"""What reaches the application and what is answered before it, without a socket between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from mtplx_kernel.server import safety
from mtplx_kernel.server.safety import MOST_HEADERS, Safety
from mtplx_kernel.server.settings import Settings
from tests.server.wire import TOKEN, Answer, start

APP = "http://app.example"
OPEN = Settings(token=None)
KEPT = Settings(token=TOKEN, cors=(APP,), body_limit=10)
RIGHT = {"authorization": f"Bearer {TOKEN}"}


class Reached:
    """An application that keeps what it got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.then: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        self.then.append(await receive())
        await send(start())
        await send({"type": "http.response.body", "body": b"hello"})


@dataclass(frozen=True)
class Came:
    """What came of a request."""

    answer: Answer | None
    bodies: list[bytes]
    then: list[Message]


def ask(
    settings: Settings,
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    *,
    method: str = "GET",
    path: str = "/v1/models",
    query: str = "",
    chunks: tuple[bytes, ...] = (b"",),
    whole: bool = True,
) -> Came:
    """Send a request through the middleware; one that is not whole goes on for ever."""
    pairs = list(headers.items()) if isinstance(headers, dict) else list(headers or [])
    if "host" not in dict(pairs):
        pairs.append(("host", "localhost"))
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
    }
    messages: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": not whole or n + 1 < len(chunks)}
        for n, chunk in enumerate(chunks)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        if not whole:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    app = Reached()
    asyncio.run(Safety(app, settings)(scope, receive, send))
    if not sent:
        return Came(None, app.bodies, app.then)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message["body"] for message in sent[1:])
    assert not sent[-1].get("more_body", False)
    return Came(Answer(sent[0]["status"], found, body), app.bodies, app.then)


def refusal(came: Came) -> tuple[int, str]:
    """The status and the code of an error that was answered before the application."""
    assert came.answer is not None
    assert came.bodies == []
    assert int(came.answer.headers["content-length"]) == len(came.answer.body)
    return came.answer.status, came.answer.error["code"]


def passed(came: Came) -> bool:
    return came.answer is not None and came.answer.status == 200 and len(came.bodies) == 1


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_right_token_passes(scheme: str) -> None:
    assert passed(ask(KEPT, {"authorization": f"{scheme} {TOKEN}"}))


@pytest.mark.parametrize(
    "given",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer wrong")],
        [("authorization", f"Bearer {TOKEN}x")],
        [("authorization", f"Bearer {TOKEN[:-1]}")],
        [("authorization", f"Bearer {TOKEN.upper()}")],
        [("authorization", f"Basic {TOKEN}")],
        [("authorization", TOKEN)],
        [("authorization", "Bearer schlüssel")],
        [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")],
        [("x-api-key", TOKEN)],
    ],
)
def test_any_other_is_refused_with_401(given: list[tuple[str, str]]) -> None:
    came = ask(KEPT, given)
    assert refusal(came) == (401, "invalid_api_key")
    assert came.answer is not None
    assert came.answer.headers["www-authenticate"].startswith('Bearer realm="mtplx-kernel"')
    assert came.answer.error["type"] == "invalid_request_error"
    assert TOKEN.encode() not in came.answer.body


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/health/ready", "/docs", "/openapi.json"]
)
def test_watchdogs_and_readers_need_no_token(path: str) -> None:
    assert passed(ask(KEPT, path=path))
    assert refusal(ask(KEPT, {"host": "evil.example"}, path=path)) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "path", ["/health/", "//health", "/healthy", "/status", "/metrics", "/", "/docs/"]
)
def test_everything_else_does(path: str) -> None:
    assert refusal(ask(KEPT, path=path)) == (401, "invalid_api_key")


def test_without_a_token_everybody_passes() -> None:
    assert passed(ask(OPEN))
    assert passed(ask(OPEN, {"authorization": "Bearer whatever"}))


def test_strange_names_are_refused_before_the_token_is_looked_at() -> None:
    for headers in ({"host": "evil.example"}, {"host": "evil.example", **RIGHT}):
        assert refusal(ask(KEPT, headers)) == (403, "host_not_allowed")
    twice = [("host", "localhost"), ("host", "localhost")]
    assert refusal(ask(OPEN, twice)) == (403, "host_not_allowed")
    assert refusal(ask(KEPT, {"host": "evil.example"}, path="/health"))[0] == 403


def test_pages_of_strange_origins_are_refused_and_get_no_cors_headers() -> None:
    came = ask(KEPT, {"origin": "http://evil.example", **RIGHT})
    assert refusal(came) == (403, "origin_not_allowed")
    assert came.answer is not None
    assert "access-control-allow-origin" not in came.answer.headers
    twice = [("origin", APP), ("origin", "http://evil.example"), *RIGHT.items()]
    assert refusal(ask(KEPT, twice)) == (403, "origin_not_allowed")


def test_pages_of_listed_origins_may_read_answers_and_refusals() -> None:
    for headers, status in (({"origin": APP, **RIGHT}, 200), ({"origin": APP}, 401)):
        answer = ask(KEPT, headers).answer
        assert answer is not None
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == APP
        assert answer.headers["vary"] == "Origin"


def test_the_endpoints_own_pages_may_ask() -> None:
    own = {"host": "localhost:8000", "origin": "http://localhost:8000", **RIGHT}
    assert passed(ask(KEPT, own))


def preflight(origin: str, *asked: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": ", ".join(asked),
    }


def test_a_preflight_of_a_listed_origin_needs_no_token() -> None:
    headers = preflight(APP, "authorization", "x-stainless-os")
    came = ask(KEPT, headers, method="OPTIONS")
    assert came.answer is not None
    assert (came.answer.status, came.answer.body, came.bodies) == (204, b"", [])
    assert came.answer.headers["access-control-allow-origin"] == APP
    assert "POST" in came.answer.headers["access-control-allow-methods"]
    assert came.answer.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert "access-control-allow-credentials" not in came.answer.headers


def test_a_preflight_says_only_names_of_headers() -> None:
    answer = ask(KEPT, preflight(APP, "x-a: 1;"), method="OPTIONS").answer
    assert answer is not None
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"


def test_a_preflight_of_another_origin_is_refused() -> None:
    came = ask(KEPT, preflight("http://evil.example"), method="OPTIONS")
    assert refusal(came) == (403, "origin_not_allowed")
    assert refusal(ask(KEPT, method="OPTIONS")) == (401, "invalid_api_key")


def sized(length: int) -> dict[str, str]:
    return {"content-length": str(length), **RIGHT}


CHUNKED = {"transfer-encoding": "chunked", **RIGHT}


@pytest.mark.parametrize("headers", [sized(10), CHUNKED])
def test_a_body_of_the_limit_passes_whole(headers: dict[str, str]) -> None:
    came = ask(KEPT, headers, method="POST", chunks=(b"01234", b"5678", b"9"))
    assert came.bodies == [b"0123456789"]
    assert came.then == [{"type": "http.disconnect"}], "what comes after the body is passed on"


@pytest.mark.parametrize(
    ("headers", "chunks"),
    [
        (sized(11), (b"01234567890",)),
        (sized(11), ()),  # the length alone is enough
        (CHUNKED, (b"01234", b"56789", b"0")),
        (CHUNKED, (b"01234567890",)),
    ],
)
def test_a_byte_more_is_refused(headers: dict[str, str], chunks: tuple[bytes, ...]) -> None:
    came = ask(KEPT, headers, method="POST", chunks=chunks)
    assert refusal(came) == (413, "body_too_large")
    assert came.answer is not None
    assert came.answer.headers["connection"] == "close"


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "LINGER_S", 0.01)
    hasty = Settings(token=TOKEN, body_timeout_s=0.01)
    came = ask(hasty, sized(5), method="POST", chunks=(b"0123",), whole=False)
    assert refusal(came) == (408, "request_timeout")
    # Whoever may not ask is not waited for at all.
    patient = Settings(token=TOKEN)
    came = ask(patient, {"content-length": "5"}, method="POST", chunks=(b"0",), whole=False)
    assert refusal(came) == (401, "invalid_api_key")


def test_a_client_that_leaves_within_its_body_is_forgotten() -> None:
    came = ask(KEPT, sized(5), method="POST", chunks=())
    assert (came.answer, came.bodies) == (None, [])


def test_headers_have_a_limit() -> None:
    many = [(f"x-{n}", "1") for n in range(MOST_HEADERS)]
    assert refusal(ask(OPEN, many)) == (431, "headers_too_large")
    assert passed(ask(OPEN, many[1:]))
    small = Settings(token=None, header_limit=100)
    assert passed(ask(small, {"x": "1" * 40}))
    assert refusal(ask(small, {"x": "1" * 90})) == (431, "headers_too_large")
    assert refusal(ask(small, path="/" + "a" * 90)) == (431, "headers_too_large")
    assert refusal(ask(small, query="a" * 90)) == (431, "headers_too_large")
