"""Streams: text as it comes, faults in the middle, and ends that the endpoint notices."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from mtplx_kernel.client import MTPLXClient
from mtplx_kernel.errors import EndpointError, EndpointLost, InvalidRequest, RequestTimeout
from tests.client.replies import MODELS, Replies, completion, delta, piece, refused
from tests.client.scripted import PATIENCE_S, Peer, Received, ScriptedEndpoint

Script = Callable[[Peer], Awaitable[None]]
LAST = completion("", choices=[])


@contextmanager
def streaming(
    script: Script, **fields: Any
) -> Iterator[tuple[ScriptedEndpoint, MTPLXClient, list[str]]]:
    """An endpoint that streams by a script, a client to it, and who was seen to leave."""
    seen: list[str] = []

    async def answer(received: Received, peer: Peer) -> None:
        await peer.begin_events()
        await script(peer)
        await peer.left()
        seen.append("left")

    with (
        ScriptedEndpoint(answer) as endpoint,
        MTPLXClient(endpoint.url, "tiny", **fields) as client,
    ):
        yield endpoint, client, seen


async def whole(peer: Peer) -> None:
    await peer.events(piece("a "), piece("river"), piece("", "stop"), LAST)
    await peer.data("[DONE]")
    await peer.end_events()


async def begun(peer: Peer) -> None:
    await peer.events(piece("a "))


def test_the_text_and_what_it_cost() -> None:
    with streaming(whole) as (endpoint, client, _):
        with client.stream("Once", max_tokens=2) as stream:
            assert list(stream) == ["a ", "river"]
            assert list(stream) == []
        (received,) = endpoint.received
    found = stream.completion
    assert (found.text, found.finish_reason) == ("a river", "stop")
    assert found.usage is not None
    assert found.usage.completion_tokens == 2
    assert found.raw == completion("a river")
    assert received.body["stream"] is True
    assert received.body["max_tokens"] == 2


def test_a_chat_answer_is_streamed_by_its_route() -> None:
    async def script(peer: Peer) -> None:
        await peer.events(delta(role="assistant", content=""), delta(content="Où ?\u2028🦀"))
        await peer.events(delta("stop"))
        await peer.data("[DONE]")

    with streaming(script) as (endpoint, client, _):
        assert list(client.stream([{"role": "user", "content": "Hi"}])) == ["Où ?\u2028🦀"]
        assert endpoint.received[0].path == "/v1/chat/completions"


def test_a_piece_is_there_before_the_next_one_is_made() -> None:
    asked_for_more = asyncio.Event()

    async def script(peer: Peer) -> None:
        await begun(peer)
        await asyncio.wait_for(asked_for_more.wait(), PATIENCE_S)
        await peer.events(piece("river", "stop"))
        await peer.data("[DONE]")

    with streaming(script) as (endpoint, client, _):
        stream = client.stream("Once")
        assert next(stream) == "a "
        assert (stream.completion.text, stream.completion.finish_reason) == ("a ", None)
        endpoint.call(asked_for_more.set)
        assert list(stream) == ["river"]


def test_a_stream_may_end_without_a_word() -> None:
    async def script(peer: Peer) -> None:
        await peer.events(piece("a "), piece("", "length"))
        await peer.end_events()

    with streaming(script) as (_, client, _seen):
        assert list(client.stream("Once")) == ["a "]


async def cut(peer: Peer) -> None:
    await begun(peer)
    peer.close()


async def early(peer: Peer) -> None:
    await begun(peer)
    await peer.end_events()


@pytest.mark.parametrize(("script", "why"), [(cut, "broke off: "), (early, "has no end")])
def test_a_broken_stream_is_an_error_that_keeps_its_text(script: Script, why: str) -> None:
    with streaming(script) as (endpoint, client, _):
        stream = client.stream("Once")
        assert next(stream) == "a "
        with pytest.raises(EndpointLost, match=why) as caught:
            next(stream)
        assert caught.value.completion == stream.completion
        assert (stream.completion.text, stream.completion.finish_reason) == ("a ", None)
        assert list(stream) == []
        assert len(endpoint.received) == 1


def test_an_error_in_the_stream_is_raised_after_the_text_before_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.events(piece("a "), refused("the row failed", type="server_error"))

    with streaming(script) as (endpoint, client, seen):
        stream = client.stream("Once")
        assert next(stream) == "a "
        with pytest.raises(EndpointError, match="the row failed") as caught:
            next(stream)
        assert caught.value.type == "server_error"
        endpoint.wait_for(lambda: seen == ["left"])


def test_silence_ends_a_stream() -> None:
    with streaming(begun, timeout=0.05) as (endpoint, client, seen):
        stream = client.stream("Once")
        assert next(stream) == "a "
        with pytest.raises(RequestTimeout):
            next(stream)
        assert stream.completion.text == "a "
        endpoint.wait_for(lambda: seen == ["left"])


def close(client: MTPLXClient) -> None:
    stream = client.stream("Once")
    assert next(stream) == "a "
    stream.close()
    stream.close()
    assert list(stream) == []


def leave(client: MTPLXClient) -> None:
    with client.stream("Once") as stream:
        assert next(stream) == "a "


def drop(client: MTPLXClient) -> None:
    stream = client.stream("Once")
    assert next(stream) == "a "
    del stream
    gc.collect()


def close_the_client(client: MTPLXClient) -> None:
    with client.stream("Once") as stream:
        assert next(stream) == "a "
        client.close()
        with pytest.raises(InvalidRequest, match="the client is closed: make another"):
            next(stream)


def interrupt(client: MTPLXClient) -> None:
    stream = client.stream("Once")
    assert next(stream) == "a "

    def wait() -> None:
        threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
        next(stream)

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert list(stream) == []


@pytest.mark.parametrize("end", [close, leave, drop, close_the_client, interrupt])
def test_the_endpoint_notices_the_end(end: Callable[[MTPLXClient], None]) -> None:
    with streaming(begun) as (endpoint, client, seen):
        end(client)
        endpoint.wait_for(lambda: seen == ["left"])


def test_nothing_is_sent_before_the_first_piece_is_asked_for() -> None:
    with streaming(whole) as (endpoint, client, _):
        client.stream("Once").close()
        with client.stream("Once"):
            pass
        assert endpoint.received == []


def test_a_refusal_comes_before_the_first_piece() -> None:
    replies = Replies(
        httpx.Response(200, json=MODELS),
        httpx.Response(400, json=refused("no")),
        httpx.Response(200, json=completion("whole")),
    )
    with MTPLXClient("http://127.0.0.1:1", transport=replies) as client:
        with pytest.raises(EndpointError, match=r"refused \(400 Bad Request\): no"):
            next(client.stream("Once"))
        with pytest.raises(EndpointError, match="no stream of events but of type application/json"):
            next(client.stream("Once"))


def test_an_answer_that_is_no_stream_is_not_waited_for() -> None:
    left: list[bool] = []

    async def endless(received: Received, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nOnce")
        await peer.left()
        left.append(True)

    with ScriptedEndpoint(endless) as endpoint, MTPLXClient(endpoint.url, "tiny") as client:
        with pytest.raises(EndpointError, match="no stream of events but of type text/plain"):
            next(client.stream("Once"))
        endpoint.wait_for(lambda: left == [True])


def test_a_client_lives_as_long_as_its_stream() -> None:
    with ScriptedEndpoint(lambda _, peer: started(peer)) as endpoint:
        stream = MTPLXClient(endpoint.url, "tiny").stream("Once")
        gc.collect()
        assert list(stream) == ["a ", "river"]


async def started(peer: Peer) -> None:
    await peer.begin_events()
    await whole(peer)
