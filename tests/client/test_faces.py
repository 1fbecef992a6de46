"""One client with two faces: the same methods, waited for in any thread or awaited."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import pytest

import mtplx_kernel as mk
from mtplx_kernel.client import AsyncMTPLXClient, AsyncTextStream, MTPLXClient, TextStream
from mtplx_kernel.errors import EndpointLost, InvalidRequest
from tests.client.replies import completion, piece
from tests.client.scripted import Peer, Received, ScriptedEndpoint

URL = "http://127.0.0.1:1"


def public(kind: type) -> dict[str, str]:
    """The methods of a class and what they take, the asynchronous ones under the plain names."""
    names = {"aclose": "close"}
    return {
        names.get(name, name): str(inspect.signature(member).replace(return_annotation=None))
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def test_both_faces_have_the_same_methods() -> None:
    assert public(MTPLXClient) == public(AsyncMTPLXClient)
    assert set(public(MTPLXClient)) == {
        *("__init__", "generate", "chat", "stream", "batch_generate", "status", "models", "close"),
    }
    assert public(TextStream).keys() == public(AsyncTextStream).keys()


async def echo(received: Received, peer: Peer) -> None:
    """Answer a prompt by itself."""
    if received.path == "/status":
        await peer.json({"state": "running"})
    elif received.body.get("stream"):
        await peer.begin_events()
        await peer.events(piece(received.body["prompt"]), piece("!", "stop"))
        await peer.data("[DONE]")
        await peer.end_events()
    else:
        body = received.body
        await peer.json(completion(body.get("prompt") or body["messages"][-1]["content"]))


def test_every_method_can_be_awaited() -> None:
    async def main(url: str) -> list[object]:
        async with AsyncMTPLXClient(url, "tiny") as client:
            async with client.stream("d") as stream:
                pieces = [text async for text in stream]
            batch = await client.batch_generate(["e", "f"])
            return [
                (await client.generate("a")).text,
                (await client.chat("b")).text,
                await client.status(),
                pieces,
                stream.completion.finish_reason,
                [getattr(each, "text", each) for each in batch],
            ]

    with ScriptedEndpoint(echo) as endpoint:
        found = anyio.run(main, endpoint.url)
        with MTPLXClient(endpoint.url, "tiny") as client, client.stream("d") as stream:
            assert found == [
                client.generate("a").text,
                client.chat("b").text,
                client.status(),
                list(stream),
                stream.completion.finish_reason,
                [getattr(each, "text", each) for each in client.batch_generate(["e", "f"])],
            ]
    assert found == ["a", "b", {"state": "running"}, ["d", "!"], "stop", ["e", "f"]]


def test_many_tasks_share_a_client() -> None:
    async def main(url: str) -> list[str]:
        async with AsyncMTPLXClient(url, "tiny") as client:
            found = await asyncio.gather(*(client.generate(str(n)) for n in range(120)))
        return [each.text for each in found]

    with ScriptedEndpoint(echo) as endpoint:
        assert anyio.run(main, endpoint.url) == [str(n) for n in range(120)]


def test_many_threads_share_a_client() -> None:
    with (
        ScriptedEndpoint(echo) as endpoint,
        MTPLXClient(endpoint.url, "tiny") as client,
        ThreadPoolExecutor(8) as pool,
    ):
        texts = list(pool.map(lambda n: "".join(client.stream(str(n))), range(40)))
    assert texts == [f"{n}!" for n in range(40)]


@pytest.mark.parametrize("method", ["generate", "stream", "batch_generate"])
def test_cancelling_a_task_cancels_its_requests(method: str) -> None:
    left: list[bool] = []

    async def silent(received: Received, peer: Peer) -> None:
        await peer.left()
        left.append(True)

    def work(client: AsyncMTPLXClient) -> Coroutine[Any, Any, object]:
        if method == "stream":
            return client.stream("Once").__anext__()
        prompt: Any = ["Once"] if method == "batch_generate" else "Once"
        made: Coroutine[Any, Any, object] = getattr(client, method)(prompt)
        return made

    async def main(url: str) -> None:
        async with AsyncMTPLXClient(url, "tiny") as client:
            task = asyncio.ensure_future(work(client))
            while not endpoint.received:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(endpoint.wait_for, lambda: left == [True])

    with ScriptedEndpoint(silent) as endpoint:
        anyio.run(main, endpoint.url)


def test_a_stream_that_a_task_lets_go_is_cancelled() -> None:
    left: list[bool] = []

    async def begun(received: Received, peer: Peer) -> None:
        await peer.begin_events()
        await peer.events(piece("a "))
        await peer.left()
        left.append(True)

    async def main(url: str) -> None:
        async with AsyncMTPLXClient(url, "tiny") as client:
            async for _ in client.stream("Once"):
                break
            gc.collect()
            await asyncio.to_thread(endpoint.wait_for, lambda: left == [True])

    with ScriptedEndpoint(begun) as endpoint:
        anyio.run(main, endpoint.url)


def test_a_closed_client_says_so() -> None:
    async def main() -> None:
        client = AsyncMTPLXClient(URL, "tiny")
        await client.aclose()
        await client.aclose()
        with pytest.raises(InvalidRequest, match="the client is closed: make another"):
            await client.generate("Once")

    anyio.run(main)
    client = MTPLXClient(URL, "tiny")
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="the client is closed: make another"):
        client.generate("Once")


def test_closing_a_client_leaves_nobody_waiting() -> None:
    async def silent(received: Received, peer: Peer) -> None:
        await peer.left()

    with ScriptedEndpoint(silent) as endpoint:
        client = MTPLXClient(endpoint.url, "tiny")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.generate, "Once")
            endpoint.wait_for(lambda: len(endpoint.received) == 1)
            client.close()
            with pytest.raises(EndpointLost, match="closed before the answer"):
                waiting.result()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "mtplx-client"]


def test_the_thread_ends_with_its_client() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=completion("a")))
    client = MTPLXClient(URL, "tiny", transport=transport)
    assert threads() == []
    client.generate("Once")
    client.generate("Once")
    assert threads() == ["mtplx-client"]
    del client
    gc.collect()
    assert threads() == []


@pytest.mark.parametrize("kind", [MTPLXClient, AsyncMTPLXClient])
def test_a_client_shows_where_it_asks_and_not_its_token(kind: Any) -> None:
    shown = repr(kind(URL + "/v1", None, "ar", token="secret"))
    assert shown == f"<{kind.__name__} {URL}: mode ar, model as served>"


def test_clients_need_no_model_and_no_backend() -> None:
    code = (
        "import sys, mtplx_kernel as mk;"
        "assert 'httpx' not in sys.modules;"
        "mk.MTPLXClient, mk.AsyncMTPLXClient;"
        "print(sorted({'mlx', 'mlx_lm', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert mk.MTPLXClient is MTPLXClient


def test_a_program_ends_with_a_client_that_was_never_closed() -> None:
    code = (
        "import mtplx_kernel as mk, sys;"
        "client = mk.MTPLXClient(sys.argv[1], 'tiny');"
        "stream = client.stream('Once');"
        "print(client.generate('Once').text, next(stream))"
    )
    with ScriptedEndpoint(echo) as endpoint:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, endpoint.url],
            capture_output=True,
            text=True,
            check=True,
        )
    assert (done.stdout, done.stderr) == ("Once Once\n", "")
