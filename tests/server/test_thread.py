"""An endpoint from its start to its end: its port, its thread, and what is open when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from mtplx_kernel.errors import InvalidRequest, MTPLXError
from mtplx_kernel.server.listening import listen
from mtplx_kernel.server.settings import Settings
from mtplx_kernel.server.thread import Endpoint
from tests.engine.gates import PATIENCE_S, in_time
from tests.server.wire import (
    TOKEN,
    Endless,
    answer_on,
    ask,
    connected,
    echo,
    head,
    is_closed,
    refuses,
    start,
)

KEPT = Settings(token=TOKEN)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert left == []


def test_it_answers_where_it_says() -> None:
    with Endpoint(echo, KEPT) as endpoint:
        assert endpoint.running
        assert endpoint.port > 0
        assert endpoint.url == f"http://127.0.0.1:{endpoint.port}"
        assert endpoint.token == TOKEN
        posted = head("POST /a HTTP/1.1", "Content-Length: 3") + b"abc"
        assert ask(endpoint, posted).body == b"/a abc"
        assert ask(endpoint, head("GET /b HTTP/1.1")).body == b"/b "
        assert ask(endpoint, head(token=None)).status == 401
        assert ask(endpoint, head("GET / HTTP/1.1", "Host: evil.example")).status == 403
    assert not endpoint.running


def test_a_port_in_use_is_refused_in_one_line() -> None:
    with Endpoint(echo, KEPT) as first:
        taken = Settings(token="another", port=first.port)
        with pytest.raises(InvalidRequest, match=rf"^port {first.port} of 127.0.0.1 is in use: "):
            Endpoint(echo, taken)
        assert ask(first, head()).status == 200


def test_a_port_is_taken_from_the_moment_that_it_is_bound() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(InvalidRequest, match="is in use"):
        listen("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 64])
def test_addresses_of_others_are_refused_in_one_line(host: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^host must be an address of") as refusal:
        Endpoint(echo, Settings(host=host))
    assert "\n" not in str(refusal.value)


def test_a_process_that_was_forked_off_does_not_keep_the_port() -> None:
    with Endpoint(echo, KEPT) as endpoint:
        # As a fork does: a second descriptor of the same socket.
        kept = os.dup(endpoint._listener.fileno())
    try:
        assert refuses(endpoint.host, endpoint.port)
        with Endpoint(echo, Settings(token=TOKEN, port=endpoint.port)) as again:
            assert ask(again, head()).status == 200
    finally:
        os.close(kept)


def test_a_port_can_be_had_again_at_once() -> None:
    port = 0
    for token in ("first", "second", "third"):
        with Endpoint(echo, Settings(token=token, port=port)) as endpoint:
            # The server's end closes first, which is what makes a port linger.
            with connected(endpoint) as client:
                client.sendall(head("GET / HTTP/1.1", "Connection: close", token=token))
                assert answer_on(client).status == 200
                assert is_closed(client)
            assert port in (0, endpoint.port)
            port = endpoint.port


def test_two_endpoints_stand_beside_each_other() -> None:
    with Endpoint(echo, Settings(token="a")) as a, Endpoint(echo, Settings(token="b")) as b:
        assert a.port != b.port
        assert [ask(a, head(token=token)).status for token in "ab"] == [200, 401]
        assert [ask(b, head(token=token)).status for token in "ab"] == [401, 200]
        a.stop()
        assert ask(b, head(token="b")).status == 200


def test_stopping_cuts_open_streams_off() -> None:
    endless = Endless()
    endpoint = Endpoint(endless, KEPT)
    with connected(endpoint) as streaming, connected(endpoint) as idle, connected(endpoint) as odd:
        idle.sendall(head("GET / HTTP/1.1", token="wrong"))
        assert answer_on(idle).status == 401
        odd.sendall(b"GET / HT")
        streaming.sendall(head())
        assert endless.begun.wait(PATIENCE_S)
        in_time(lambda: endpoint.stop(0))
        assert endless.ended.is_set(), "the application was told that its client is gone"
        assert is_closed(idle)
        assert is_closed(odd)
        assert not ends_well(streaming)
    assert not endpoint.running
    assert refuses(endpoint.host, endpoint.port)


def ends_well(client: socket.socket) -> bool:
    """Whether a chunked answer comes to its end, rather than to that of its connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(100_000):
            found += piece
    return found.endswith(b"0\r\n\r\n")


def test_open_requests_may_finish_if_there_is_time() -> None:
    begun, finish = threading.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            begun.set()
            await finish.wait()
            await send(start())
            await send({"type": "http.response.body", "body": b"finished"})

    endpoint = Endpoint(app, KEPT)
    with connected(endpoint) as client:
        client.sendall(head())
        assert begun.wait(PATIENCE_S)
        stopping = threading.Thread(target=endpoint.stop, args=(PATIENCE_S,))
        stopping.start()
        while not refuses(endpoint.host, endpoint.port):
            pass
        assert not endpoint.running
        endpoint._loop.call_soon_threadsafe(finish.set)
        assert answer_on(client).body == b"finished"
        stopping.join(PATIENCE_S)
    assert not stopping.is_alive()


def test_what_goes_on_without_its_client_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    begun, ends = threading.Event(), list[str]()

    async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            begun.set()
            try:
                await asyncio.sleep(10 * PATIENCE_S)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

    endpoint = Endpoint(stubborn, KEPT)
    with connected(endpoint) as client:
        client.sendall(head())
        assert begun.wait(PATIENCE_S)
        in_time(lambda: endpoint.stop(0))
    assert ends == ["cancelled"]
    assert [record.name for record in caplog.records] == ["mtplx_kernel.server.connection"]


def test_stopping_twice_does_nothing() -> None:
    endpoint = Endpoint(echo, KEPT)
    for _ in range(3):
        endpoint.stop()
    assert not endpoint.running
    with pytest.raises(InvalidRequest, match="timeout must be seconds"):
        endpoint.stop(-1)


def test_many_may_stop_it_at_once() -> None:
    endless = Endless()
    endpoint = Endpoint(endless, KEPT)
    with connected(endpoint) as client:
        client.sendall(head())
        assert endless.begun.wait(PATIENCE_S)
        stopping = [threading.Thread(target=endpoint.stop, args=(0,)) for _ in range(4)]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in stopping)
    assert refuses(endpoint.host, endpoint.port)


def test_a_request_may_stop_what_it_is_served_by() -> None:
    holder: list[Endpoint] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            holder[0].stop()
            await send(start())
            await send({"type": "http.response.body", "body": b"stopped"})

    holder.append(Endpoint(app, KEPT))
    assert ask(holder[0], head()).body == b"stopped"
    in_time(holder[0].stop)


def test_its_repr_tells_its_state_and_no_token() -> None:
    with Endpoint(echo, KEPT) as endpoint:
        assert repr(endpoint) == f"<Endpoint {endpoint.url}: running, token ****>"
    assert repr(endpoint) == f"<Endpoint {endpoint.url}: stopped, token ****>"
    with Endpoint(echo, Settings()) as endpoint:
        assert repr(endpoint) == f"<Endpoint {endpoint.url}: running, no token>"


def test_an_application_that_cannot_start_is_told_of() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(MTPLXError, match="did not start"):
        Endpoint(broken, KEPT)


def test_a_fault_of_the_application_ends_its_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/fault":
            raise ZeroDivisionError("of the application")
        await echo(scope, receive, send)

    with Endpoint(faulty, KEPT) as endpoint:
        assert ask(endpoint, head("GET /fault HTTP/1.1")).status == 500
        assert ask(endpoint, head("GET /fine HTTP/1.1")).body == b"/fine "
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_something_is_done_every_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mtplx_kernel.server.thread.COUNT_S", 0)
    done = threading.Event()

    async def note() -> None:
        done.set()
        raise ZeroDivisionError("of the application")

    with Endpoint(echo, KEPT, note) as endpoint:
        assert done.wait(PATIENCE_S)
        assert ask(endpoint, head()).status == 200
    assert {record.name for record in caplog.records} == {"mtplx_kernel.server.thread"}


def test_ipv6_and_all_addresses_are_reached_by_their_url() -> None:
    with Endpoint(echo, Settings(token=TOKEN, host="0.0.0.0")) as endpoint:
        assert (endpoint.host, endpoint.url) == ("0.0.0.0", f"http://127.0.0.1:{endpoint.port}")
        assert ask(endpoint, head("GET / HTTP/1.1", "Host: 127.0.0.1")).status == 200
    if has_ipv6():
        with Endpoint(echo, Settings(token=TOKEN, host="::1")) as endpoint:
            assert endpoint.url == f"http://[::1]:{endpoint.port}"
            assert ask(endpoint, head("GET / HTTP/1.1", "Host: [::1]")).status == 200


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def test_a_process_ends_with_its_endpoint_open() -> None:
    code = (
        "import atexit, socket\n"
        "from mtplx_kernel.server.settings import Settings\n"
        "from mtplx_kernel.server.thread import Endpoint\n"
        "from tests.server.wire import Endless, head\n"
        "endless = Endless()\n"
        "atexit.register(lambda: print('told:', endless.ended.is_set()))\n"
        "endpoint = Endpoint(endless, Settings(token='t'))\n"
        "client = socket.create_connection((endpoint.host, endpoint.port))\n"
        "client.sendall(head(token='t'))\n"
        "assert endless.begun.wait(60)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\ntold: True\n", "")
