"""Models that are looked up, errors in one line, and what a client sends beside the body."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from mtplx_kernel.client import Completion, MTPLXClient
from mtplx_kernel.errors import EndpointError, EndpointLost, InvalidRequest, RequestTimeout
from tests.client.replies import MODELS, Replies, chat, completion, refused
from tests.client.scripted import Peer, Received, ScriptedEndpoint

URL = "http://127.0.0.1:1"


def client(*replies: httpx.Response | Exception, **fields: Any) -> MTPLXClient:
    return MTPLXClient(URL, transport=Replies(*replies), **{"model": "tiny", **fields})


def ok(found: object) -> httpx.Response:
    return httpx.Response(200, json=found)


def models(*names: str) -> httpx.Response:
    return ok({"data": [{"id": name} for name in names]})


def test_the_model_that_is_served_is_looked_up_once() -> None:
    replies = Replies(ok(MODELS), ok(completion("a")), ok(chat("b")))
    with MTPLXClient(URL, transport=replies) as asked:
        assert (asked.generate("Once").text, asked.chat("Hi").text) == ("a", "b")
    assert replies.paths == [
        "GET /v1/models",
        "POST /v1/completions",
        "POST /v1/chat/completions",
    ]
    assert [json.loads(each.content)["model"] for each in replies.requests[1:]] == ["tiny"] * 2


def test_a_model_that_was_changed_is_looked_up_again() -> None:
    gone = httpx.Response(404, json=refused("no model tiny", code="model_not_found"))
    replies = Replies(
        models("tiny"), ok(completion("a")), gone, models("other"), ok(completion("b")), gone
    )
    with MTPLXClient(URL, transport=replies) as asked:
        assert [asked.generate("Once").text for _ in range(2)] == ["a", "b"]
    assert [json.loads(each.content)["model"] for each in replies.requests if each.content] == [
        "tiny",
        "tiny",
        "other",
    ]
    with pytest.raises(EndpointError, match="no model tiny"), client(gone) as asked:
        asked.generate("Once")  # a name of the caller's is not exchanged


@pytest.mark.parametrize(
    ("timeout", "connect", "read"), [(600.0, 10.0, 600.0), (2.0, 2.0, 2.0), (None, 10.0, None)]
)
def test_a_connection_is_waited_for_no_longer_than_an_answer(
    timeout: float | None, connect: float, read: float | None
) -> None:
    replies = Replies(ok(completion("a")))
    with MTPLXClient(URL, "tiny", transport=replies, timeout=timeout) as asked:
        asked.generate("Once")
    (request,) = replies.requests
    given = {"connect": connect, "read": read, "write": read, "pool": None}
    assert request.extensions["timeout"] == given


def test_several_models_leave_the_choice_to_the_caller() -> None:
    replies = (models("one", "two"), models(), ok({"data": 3}), models("one", "two"))
    with client(*replies, model=None) as asked:
        with pytest.raises(InvalidRequest, match=r"name one by model=\.\.\.: one, two$"):
            asked.generate("Once")
        with pytest.raises(EndpointError, match="lists no models"):
            asked.generate("Once")
        with pytest.raises(EndpointError, match="lists no models"):
            asked.models()
        assert asked.models() == ["one", "two"]


def test_an_error_has_the_endpoints_fields() -> None:
    error = refused("temperature must be\nat most 2", param="temperature", code="bad_value")
    with client(httpx.Response(400, json=error)) as asked, pytest.raises(EndpointError) as caught:
        asked.generate("Once", temperature=3)
    assert str(caught.value) == (
        "/v1/completions refused (400 Bad Request): temperature must be at most 2"
    )
    found = caught.value
    assert (found.status, found.param, found.code) == (400, "temperature", "bad_value")
    assert (found.type, found.retry_after_s) == ("invalid_request_error", None)


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (
            httpx.Response(401, json=refused("no token")),
            r"\(401 Unauthorized\): no token \(token=... takes the endpoint's token\)$",
        ),
        (
            httpx.Response(400, json=refused("unknown field", param="generation_mode")),
            r"unknown field \(concurrency_mode=None asks for no mode\)$",
        ),
        (httpx.Response(404, json={"detail": "Not Found"}), r"404 Not Found\): .*Not Found"),
        (httpx.Response(404, json={"error": "no such model"}), r"\): no such model$"),
        (httpx.Response(502, text="<html>\n bad\n</html>"), r"\): <html> bad </html>$"),
        (httpx.Response(500, content=b""), r"\(500 Internal Server Error\): no reason given$"),
        (httpx.Response(307, headers={"Location": "http://elsewhere"}), "307 Temporary Redirect"),
        (httpx.Response(200, text="<html>"), "is no JSON object but '<html>': is it an OpenAI"),
        (httpx.Response(200, json=[1]), r"is no JSON object but \[1\]: is it an OpenAI endpoint"),
        (httpx.Response(200, json={}), "has no choices: is it an OpenAI endpoint"),
    ],
)
def test_errors_are_one_line(reply: httpx.Response, line: str) -> None:
    with client(reply) as asked, pytest.raises(EndpointError, match=line) as caught:
        asked.generate("Once")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "kind", "line"),
    [
        (httpx.ReadTimeout(""), RequestTimeout, "cancelled: nothing came from .* for 600 s"),
        (httpx.ReadError(""), EndpointLost, "the answer from http.* broke off: ReadError"),
        (httpx.RemoteProtocolError("bad line"), EndpointLost, "broke off: bad line"),
    ],
)
def test_faults_of_the_connection(fault: Exception, kind: type[Exception], line: str) -> None:
    with client(fault) as asked, pytest.raises(kind, match=line):
        asked.generate("Once")


def test_no_advice_on_a_mode_that_the_caller_asked_for() -> None:
    reply = httpx.Response(400, json=refused("no such mode", param="generation_mode"))
    with client(reply) as asked, pytest.raises(EndpointError, match=r"no such mode$"):
        asked.generate("Once", generation_mode="fast")


def test_status_is_plain_data() -> None:
    replies = Replies(ok({"state": "running"}), httpx.Response(404, json=refused("no such route")))
    with MTPLXClient(URL, transport=replies) as asked:
        assert asked.status() == {"state": "running"}
        with pytest.raises(EndpointError, match="/status refused"):
            asked.status()
    assert replies.paths == ["GET /status"] * 2


async def answer(received: Received, peer: Peer) -> None:
    await peer.json(completion("fine"))


def test_the_token_and_the_body_arrive() -> None:
    with (
        ScriptedEndpoint(answer) as endpoint,
        MTPLXClient(endpoint.url + "/v1", "tiny", "hyper", token="secret") as asked,
    ):
        assert isinstance(asked.generate("Où ? 🦀", seed=7), Completion)
        (received,) = endpoint.received
    assert (received.method, received.path) == ("POST", "/v1/hyper/completions")
    assert received.headers["authorization"] == "Bearer secret"
    assert received.headers["content-type"] == "application/json"
    assert received.body == {"prompt": "Où ? 🦀", "model": "tiny", "seed": 7}


def test_no_proxy_is_asked_for_an_endpoint_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedEndpoint(answer) as endpoint, MTPLXClient(endpoint.url, "tiny") as asked:
        assert asked.generate("Once").text == "fine"


def test_a_connection_serves_several_requests() -> None:
    ports: list[int] = []

    async def note(received: Received, peer: Peer) -> None:
        ports.append(peer.port)
        await peer.json(completion("fine"))

    with ScriptedEndpoint(note) as endpoint, MTPLXClient(endpoint.url, "tiny") as asked:
        for _ in range(3):
            asked.generate("Once")
    assert ports == ports[:1] * 3


def test_a_wait_that_is_too_long_ends_the_request() -> None:
    left: list[bool] = []

    async def silent(received: Received, peer: Peer) -> None:
        await peer.left()
        left.append(True)

    with (
        ScriptedEndpoint(silent) as endpoint,
        MTPLXClient(endpoint.url, "tiny", timeout=0.05) as asked,
    ):
        with pytest.raises(RequestTimeout, match=r"nothing came from .* for 0\.05 s"):
            asked.generate("Once")
        endpoint.wait_for(lambda: left == [True])


def test_a_broken_answer_is_not_taken_for_whole() -> None:
    async def half(received: Received, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n", b'{"choices": [')
        peer.close()

    with ScriptedEndpoint(half) as endpoint, MTPLXClient(endpoint.url, "tiny") as asked:
        with pytest.raises(EndpointLost, match="broke off"):
            asked.generate("Once")
        assert len(endpoint.received) == 1
