"""Batches: so many at a time, results in order, each with its own end."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import Any

import httpx
import pytest

from mtplx_kernel.client import Completion, MTPLXClient, Retries
from mtplx_kernel.errors import EndpointError, InvalidRequest, MTPLXError
from tests.client.replies import completion, refused
from tests.client.scripted import PATIENCE_S, Peer, Received, ScriptedEndpoint

NUMBERS = [str(number) for number in range(10)]


def texts(found: list[Completion | MTPLXError]) -> list[str]:
    return [each.text if isinstance(each, Completion) else str(each) for each in found]


@pytest.mark.parametrize("size", [1, 3])
def test_so_many_are_asked_for_at_a_time(size: int) -> None:
    async def answer(received: Received, peer: Peer) -> None:
        # The first are answered when all that may come together are there, and a while later,
        # in which more could come.
        while endpoint.most < size:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        await peer.json(completion(received.body["prompt"]))

    with (
        ScriptedEndpoint(answer) as endpoint,
        MTPLXClient(endpoint.url, "tiny", max_batch_size=size) as client,
    ):
        assert texts(client.batch_generate(NUMBERS)) == NUMBERS
    assert endpoint.most == size
    assert len(endpoint.received) == len(NUMBERS)


def test_results_keep_their_order_when_answers_do_not() -> None:
    waiting: dict[str, asyncio.Event] = {}

    async def answer(received: Received, peer: Peer) -> None:
        # The last prompt is answered first, then the one before it, and so on.
        mine = waiting.setdefault(received.body["prompt"], asyncio.Event())
        if received.body["prompt"] == "3":
            mine.set()
        await asyncio.wait_for(mine.wait(), PATIENCE_S)
        await peer.json(completion(f"answer {received.body['prompt']}"))
        before = str(int(received.body["prompt"]) - 1)
        waiting.setdefault(before, asyncio.Event()).set()

    with ScriptedEndpoint(answer) as endpoint, MTPLXClient(endpoint.url, "tiny") as client:
        found = client.batch_generate(NUMBERS[:4])
    assert texts(found) == ["answer 0", "answer 1", "answer 2", "answer 3"]


def test_requests_are_sent_in_order() -> None:
    async def answer(received: Received, peer: Peer) -> None:
        await peer.json(completion(""))

    with (
        ScriptedEndpoint(answer) as endpoint,
        MTPLXClient(endpoint.url, "tiny", max_batch_size=1) as client,
    ):
        client.batch_generate(NUMBERS)
    assert [received.body["prompt"] for received in endpoint.received] == NUMBERS


def test_each_prompt_has_its_own_end() -> None:
    tries: dict[str, int] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        prompt = body.get("prompt") or body["messages"][0]["content"]
        tries[prompt] = tries.get(prompt, 0) + 1
        if prompt == "busy" and tries[prompt] == 1:
            return httpx.Response(503, json=refused("full"))
        if prompt == "bad":
            return httpx.Response(400, json=refused("no"))
        if prompt == "lost":
            raise httpx.ReadError("reset")
        return httpx.Response(200, json=completion(f"{prompt} {body['max_tokens']}"))

    async def at_once(seconds: float) -> None:
        pass

    prompts: list[Any] = ["a", "bad", 3, "lost", "busy", [{"role": "user", "content": "b"}]]
    with MTPLXClient(
        "http://127.0.0.1:1",
        "tiny",
        transport=httpx.MockTransport(answer),
        retries=Retries(sleep=at_once),
    ) as client:
        found = client.batch_generate(prompts, max_tokens=5)
    assert texts(found) == [
        "a 5",
        "/v1/completions refused (400 Bad Request): no",
        "a prompt must be text, a list of messages or a list of token ids, and not empty, not 3",
        "the answer from http://127.0.0.1:1 broke off: reset",
        "busy 5",
        "b 5",
    ]
    assert isinstance(found[1], EndpointError)
    assert isinstance(found[2], InvalidRequest)
    assert tries == {"a": 1, "bad": 1, "lost": 1, "busy": 2, "b": 1}


def test_what_rules_out_all_prompts_is_raised() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=completion("a")))
    with MTPLXClient("http://127.0.0.1:1", "tiny", transport=transport) as client:
        assert client.batch_generate([]) == []
        with pytest.raises(InvalidRequest, match="prompts must be a list of prompts"):
            client.batch_generate("Once")
        with pytest.raises(InvalidRequest, match="prompts must be a list of prompts"):
            client.batch_generate(3)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="stream is no option"):
            client.batch_generate(["Once"], stream=True)


def test_an_interrupt_ends_all_that_run_and_sends_no_more() -> None:
    left: list[str] = []

    async def answer(received: Received, peer: Peer) -> None:
        if len(endpoint.received) == 3:
            # Only now, so that three are known to be on their way.
            threading.Thread(target=signal.raise_signal, args=[signal.SIGINT]).start()
        await peer.left()
        left.append(received.body["prompt"])

    with (
        ScriptedEndpoint(answer) as endpoint,
        MTPLXClient(endpoint.url, "tiny", max_batch_size=3) as client,
    ):
        with pytest.raises(KeyboardInterrupt):
            client.batch_generate(NUMBERS)
        endpoint.wait_for(lambda: sorted(left) == ["0", "1", "2"])
        assert len(endpoint.received) == 3
