"""Clients that go away: over real sockets, their requests end and nobody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.timeline import DecodeWindow
from mtplx_kernel.server.thread import Endpoint, serve
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S, Gate
from tests.server.site import CHAT, HYPER_CHAT, TEXT, body, wait_until
from tests.server.wire import TOKEN, answer_on, connected, head


@pytest.fixture(scope="module")
def endpoint(served: Engine) -> Iterator[Endpoint]:
    with serve(lambda: served, token=TOKEN) as opened:
        yield opened


def post(path: str, **fields: Any) -> bytes:
    content = json.dumps(body(path, **fields)).encode()
    length = f"Content-Length: {len(content)}"
    return head(f"POST {path} HTTP/1.1", "Content-Type: application/json", length) + content


def ended(engine: Engine, before: int) -> list[DecodeWindow]:
    """The windows of requests since, once all have ended."""
    wait_until(lambda: len(engine.timeline.windows()) > before)
    windows = engine.timeline.windows()[before:]
    wait_until(lambda: all(window.finish_reason is not None for window in windows))
    return windows


@pytest.mark.parametrize("path", [CHAT, TEXT, HYPER_CHAT])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": True, "n": 3}, {}], ids=str)
def test_a_client_that_leaves_frees_its_place(
    endpoint: Endpoint, served: Engine, path: str, fields: dict[str, Any]
) -> None:
    before = len(served.timeline.windows())
    with connected(endpoint) as client:
        client.sendall(post(path, max_tokens=15_000, ignore_eos=True, **fields))
        if "stream" in fields:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        wait_until(lambda: served.status()["running"] == 1)
    windows = ended(served, before)
    assert [window.finish_reason for window in windows] == ["cancelled"] * fields.get("n", 1)
    assert served.generate(PROBE, max_tokens=3, timeout=PATIENCE_S).finish_reason == "length"


@pytest.mark.parametrize("ahead", [b"\r\n", head(), b"x" * 500_000], ids=len)
def test_a_client_that_leaves_after_it_sent_more_frees_its_place(
    endpoint: Endpoint, served: Engine, ahead: bytes
) -> None:
    before = len(served.timeline.windows())
    with connected(endpoint) as client:
        client.sendall(post(CHAT, max_tokens=15_000, ignore_eos=True))
        wait_until(lambda: served.status()["running"] == 1)
        # In two pieces: the server must have gone on to read after the first.
        client.sendall(ahead[:1])
        connection = next(c for c in endpoint._server.server_state.connections)
        wait_until(lambda: connection.conn.trailing_data[0] == ahead[:1])
        client.sendall(ahead[1:])
    assert [window.finish_reason for window in ended(served, before)] == ["cancelled"]


def test_a_client_that_leaves_the_queue_is_forgotten(endpoint: Endpoint, served: Engine) -> None:
    gate = Gate()
    held = served.submit(PROBE, max_tokens=2, ignore_eos=True, on_token=gate)
    gate.await_reached()
    before = len(served.timeline.windows())
    with connected(endpoint) as stays:
        stays.sendall(post(CHAT))
        wait_until(lambda: served.status()["queue"]["waiting"] == 1)
        with connected(endpoint) as leaves:
            leaves.sendall(post(CHAT))
            wait_until(lambda: served.status()["queue"]["waiting"] == 2)
        # Its place is free before the engine does anything.
        gate.open()
        answer = json.loads(answer_on(stays, "POST").body)
    assert answer["choices"][0]["finish_reason"] == "length"
    held.result(PATIENCE_S)
    assert [w.finish_reason for w in ended(served, before)] == ["length", "cancelled"]


def test_a_client_that_stays_hears_all_while_another_leaves(
    endpoint: Endpoint, served: Engine
) -> None:
    expected = served.generate(PROBE, max_tokens=300, ignore_eos=True).text
    with connected(endpoint) as stays, connected(endpoint) as leaves:
        stays.sendall(post(TEXT, prompt=PROBE, max_tokens=300, ignore_eos=True, stream=True))
        leaves.sendall(post(TEXT, max_tokens=15_000, ignore_eos=True, stream=True))
        leaves.close()
        *chunks, end, rest = answer_on(stays, "POST").body.decode().split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    found = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    assert "".join(chunk["choices"][0]["text"] for chunk in found) == expected
