"""Interrupts of the client that blocks, wherever they strike: nothing goes on at the endpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from mtplx_kernel.client import MTPLXClient
from mtplx_kernel.client.background import Background
from mtplx_kernel.errors import InvalidRequest
from tests.client.replies import completion, piece
from tests.client.scripted import Peer, Received, ScriptedEndpoint


async def answer(received: Received, peer: Peer) -> None:
    """Answer a prompt of one letter, and let others wait; a stream begins."""
    if received.body.get("stream"):
        await peer.begin_events()
        await peer.events(piece("a "))
        await peer.left()
    elif len(received.body["prompt"]) > 1:
        await peer.left()
    else:
        await peer.json(completion("fine"))


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(answer) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint: ScriptedEndpoint) -> Iterator[MTPLXClient]:
    with MTPLXClient(endpoint.url, "tiny") as client:
        yield client


def before(hand_over: Callable[[Any], None], call: Any) -> None:
    raise KeyboardInterrupt


def with_its_loop(hand_over: Callable[[Any], None], call: Any) -> None:
    begin, call.begin = call.begin, lambda: None
    hand_over(call)
    call.begin = begin
    raise KeyboardInterrupt


def after(hand_over: Callable[[Any], None], call: Any) -> None:
    hand_over(call)
    raise KeyboardInterrupt


STRIKES = (before, with_its_loop, after)


@contextmanager
def striking(monkeypatch: pytest.MonkeyPatch, strike: Any) -> Iterator[None]:
    """An interrupt at one place of the next call."""
    hand_over = Background._hand_over
    left = [strike]

    def struck(self: Background, call: Any) -> None:
        if left:
            left.pop()(hand_over.__get__(self), call)
        else:
            hand_over(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(Background, "_hand_over", struck)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("strike", STRIKES)
def test_a_request_ends_wherever_the_interrupt_strikes(
    endpoint: ScriptedEndpoint, client: MTPLXClient, monkeypatch: pytest.MonkeyPatch, strike: Any
) -> None:
    assert client.generate("a").text == "fine"
    with striking(monkeypatch, strike):
        client.generate("silence")
    endpoint.wait_for(lambda: endpoint.now == 0)
    assert client.generate("a").text == "fine"


@pytest.mark.parametrize("strike", STRIKES)
def test_a_stream_ends_although_its_traceback_is_kept(
    endpoint: ScriptedEndpoint, client: MTPLXClient, monkeypatch: pytest.MonkeyPatch, strike: Any
) -> None:
    stream = client.stream("Once")
    assert next(stream) == "a "
    with striking(monkeypatch, strike):
        next(stream)
    endpoint.wait_for(lambda: endpoint.now == 0)
    assert list(stream) == []


def test_interrupts_at_any_time_leave_nothing_behind(
    endpoint: ScriptedEndpoint, client: MTPLXClient
) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def interrupted(after_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        client.generate("silence")

    assert client.generate("a").text == "fine"
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for tenths_of_ms in range(1, 61):
            with pytest.raises(KeyboardInterrupt):
                interrupted(tenths_of_ms / 10_000)
    finally:
        signal.signal(signal.SIGALRM, handler)
    endpoint.wait_for(lambda: endpoint.now == 0)
    assert client.generate("a").text == "fine"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_is_told_to_make_its_own(client: MTPLXClient) -> None:
    assert client.generate("a").text == "fine"
    child = os.fork()
    if not child:
        try:
            client.generate("a")
        except InvalidRequest as error:
            os._exit(7 if str(error) == "the client is another process's: make another" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert client.generate("a").text == "fine"
