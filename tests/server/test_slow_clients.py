"""Clients that dawdle, stall or talk nonsense lose their connection, and nobody else does."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from mtplx_kernel.server import safety
from mtplx_kernel.server.settings import Settings
from mtplx_kernel.server.thread import Endpoint
from tests.engine.gates import PATIENCE_S
from tests.server.wire import TOKEN, Endless, answer_on, ask, connected, echo, head, is_closed

HASTY = Settings(
    token=TOKEN, header_timeout_s=0.2, body_timeout_s=0.2, connection_limit=8, body_limit=1000
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safety, "LINGER_S", 0.05)
        with Endpoint(echo, HASTY) as opened:
            yield opened


@pytest.fixture(autouse=True)
def _still_answers(endpoint: Endpoint) -> Iterator[None]:
    yield
    assert ask(endpoint, head("GET /still HTTP/1.1")).body == b"/still "


def drip(client: socket.socket, piece: bytes) -> None:
    """Send a piece every few moments until the other side ends it."""
    deadline = time.monotonic() + PATIENCE_S
    client.setblocking(False)
    while time.monotonic() < deadline:
        try:
            client.send(piece)
            if client.recv(1, socket.MSG_PEEK) is not None:
                break
        except BlockingIOError:
            time.sleep(0.02)
        except ConnectionError:
            break
    client.settimeout(PATIENCE_S)


def test_who_says_nothing_is_dropped_without_a_word(endpoint: Endpoint) -> None:
    with connected(endpoint) as client:
        assert is_closed(client)


@pytest.mark.parametrize("begun", [b"G", b"GET / HTTP/1.1\r\n", head()[:-2]])
def test_headers_that_do_not_end_are_dropped(endpoint: Endpoint, begun: bytes) -> None:
    with connected(endpoint) as client:
        client.sendall(begun)
        answer = answer_on(client)
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert is_closed(client)


def test_dripping_headers_buy_no_time(endpoint: Endpoint) -> None:
    with connected(endpoint) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX: ")
        drip(client, b"a")
        assert answer_on(client).status == 408


def test_a_second_request_has_no_more_time_than_the_first(endpoint: Endpoint) -> None:
    with connected(endpoint) as client:
        client.sendall(head("GET /one HTTP/1.1"))
        assert answer_on(client).body == b"/one "
        client.sendall(b"GET /two")
        assert answer_on(client).status == 408


def test_a_connection_may_idle_between_requests(endpoint: Endpoint) -> None:
    with connected(endpoint) as client:
        for path in ("/one", "/two"):
            client.sendall(head(f"GET {path} HTTP/1.1"))
            assert answer_on(client).body == f"{path} ".encode()
            time.sleep(2 * HASTY.header_timeout_s)  # longer than headers may take


@pytest.mark.parametrize("kind", ["Content-Length: 9", "Transfer-Encoding: chunked"])
def test_bodies_that_do_not_end_are_dropped(endpoint: Endpoint, kind: str) -> None:
    with connected(endpoint) as client:
        client.sendall(head("POST / HTTP/1.1", kind) + b"2\r\nab")
        answer = answer_on(client)
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert is_closed(client)


def test_dripping_bodies_buy_no_time(endpoint: Endpoint) -> None:
    with connected(endpoint) as client:
        client.sendall(head("POST / HTTP/1.1", "Content-Length: 999"))
        drip(client, b"a")
        assert answer_on(client).status == 408


def test_who_reads_nothing_is_cut_off() -> None:
    flood = Endless(chunk=bytes(1_000_000))
    settings = Settings(token=TOKEN, stall_timeout_s=0.2)
    with Endpoint(flood, settings) as endpoint, connected(endpoint) as client:
        client.sendall(head())
        assert flood.begun.wait(PATIENCE_S)
        assert flood.ended.wait(PATIENCE_S), "the application has not heard of it"


def test_any_byte_that_is_not_taken_counts(endpoint: Endpoint) -> None:
    with connected(endpoint) as client:
        client.sendall(head())
        assert answer_on(client).status == 200
        limits = [
            connection.transport.get_write_buffer_limits()
            for connection in endpoint._server.server_state.connections
        ]
        assert set(limits) == {(0, 0)}


@pytest.mark.parametrize("size", [100_000, 60_000_000])
def test_who_reads_slowly_is_not(size: int) -> None:
    flood = Endless(chunk=bytes(size))
    settings = Settings(token=TOKEN, stall_timeout_s=0.6)
    with Endpoint(flood, settings) as endpoint, connected(endpoint) as client:
        client.sendall(head())
        end = time.monotonic() + 1.5  # more than twice what a stall may take
        while time.monotonic() < end:
            assert client.recv(50_000)
            time.sleep(0.01)
        assert not flood.ended.is_set()


@pytest.mark.parametrize("pieces", [1, 20])
def test_headers_over_the_limit_are_refused(endpoint: Endpoint, pieces: int) -> None:
    request = head("GET / HTTP/1.1", f"X: {'a' * 2 * HASTY.header_limit}")
    step = len(request) // pieces
    with connected(endpoint) as client:
        try:
            for at in range(0, len(request), step):
                client.sendall(request[at : at + step])
                time.sleep(0.001 if pieces > 1 else 0)
        except ConnectionError:
            pass  # it is refused before it has all come
        answer = answer_on(client)
    assert (answer.status, answer.error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize(
    ("nonsense", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # a TLS hello
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # without a Host
        (head("POST / HTTP/1.1", "Content-Length: -1"), 400),
        (head("POST / HTTP/1.1", "Content-Length: 1", "Content-Length: 2"), 400),
        (head("POST / HTTP/1.1", "Transfer-Encoding: gzip"), 400),
        (head("POST / HTTP/1.1", "Transfer-Encoding: chunked") + b"no number\r\n", 400),
    ],
)
def test_what_is_no_http_is_told_so(endpoint: Endpoint, nonsense: bytes, status: int) -> None:
    with connected(endpoint) as client:
        client.sendall(nonsense)
        answer = answer_on(client)
        assert answer.status == status
        assert answer.error["type"] == "invalid_request_error"
        assert is_closed(client)


@pytest.mark.parametrize("token", [TOKEN, "wrong"])
def test_a_body_that_turns_to_nonsense_is_answered_once(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture, token: str
) -> None:
    with connected(endpoint) as client:
        begun = head("POST / HTTP/1.1", "Transfer-Encoding: chunked", token=token)
        client.sendall(begun + b"no number\r\n")
        assert answer_on(client).status == 400
        assert is_closed(client)
    assert caplog.records == []


def test_a_head_whose_body_is_nonsense_gets_headers_alone(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(endpoint) as client:
        client.sendall(head("HEAD / HTTP/1.1", "Transfer-Encoding: chunked") + b"no number\r\n")
        answer = answer_on(client, "HEAD")
        assert (answer.status, answer.body) == (400, b"")
        assert int(answer.headers["content-length"]) > 0
        assert is_closed(client)
    assert caplog.records == []


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_sent_to_its_end_and_gets_its_answer(
    endpoint: Endpoint, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safety, "LINGER_S", PATIENCE_S)
    size = 20_000_000  # more than sockets hold
    if chunked:
        request = head("POST / HTTP/1.1", "Transfer-Encoding: chunked")
        request += f"{size:x}\r\n".encode() + bytes(size) + b"\r\n0\r\n\r\n"
    else:
        request = head("POST / HTTP/1.1", f"Content-Length: {size}") + bytes(size)
    with connected(endpoint) as client:
        client.sendall(request)
        answer = answer_on(client)
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert is_closed(client)


def test_who_asks_first_whether_to_send_is_told_at_once(endpoint: Endpoint) -> None:
    for length, expected in ((5, b"HTTP/1.1 100 "), (5000, b"HTTP/1.1 413 ")):
        request = head("POST / HTTP/1.1", f"Content-Length: {length}", "Expect: 100-continue")
        with connected(endpoint) as client:
            client.sendall(request)
            assert client.recv(13) == expected


def test_one_connection_too_many_is_refused() -> None:
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint(echo, Settings(token=TOKEN, connection_limit=2)))
        first, second, third = (stack.enter_context(connected(endpoint)) for _ in range(3))
        for client in (first, second):
            client.sendall(head())
            assert answer_on(client).status == 200
        answer = answer_on(third)
        assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
        assert answer.headers["retry-after"] == "1"
        assert is_closed(third)
        first.sendall(head("GET /first HTTP/1.1"))
        assert answer_on(first).body == b"/first "


def test_requests_that_come_together_are_answered_in_order(endpoint: Endpoint) -> None:
    with connected(endpoint) as client:
        client.sendall(head("GET /one HTTP/1.1") + head("GET /two HTTP/1.1") + b"GET /th")
        found = b""
        while found.count(b"HTTP/1.1 ") < 3:
            piece = client.recv(10_000)
            assert piece, found
            found += piece
        assert found.index(b"/one ") < found.index(b"/two ") < found.index(b"HTTP/1.1 408")
