"""A real kernel that serves: cells and clients do not disturb each other, and its end is theirs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from mtplx_kernel.client import MTPLXClient
from tests.ipython.test_kernel import ENDLESS, LIMIT_S, Kernel, started


class Client:
    """Streams one long answer in a thread of its own."""

    def __init__(self, port: int, token: str) -> None:
        self._sent = {"Authorization": f"Bearer {token}"}
        self._url = f"http://127.0.0.1:{port}/v1"
        self._more = threading.Condition()
        self.chunks = 0
        self.done = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        models = httpx.get(f"{self._url}/models", headers=self._sent, timeout=LIMIT_S).json()
        wish = {
            "model": models["data"][0]["id"],
            "prompt": "Once",
            "max_tokens": 90_000,
            "temperature": 0,
            "stream": True,
        }
        # The kernel's end may cut the answer.
        with (
            suppress(httpx.HTTPError),
            httpx.stream(
                "POST",
                f"{self._url}/completions",
                json=wish,
                headers=self._sent,
                timeout=LIMIT_S,
            ) as answer,
        ):
            for line in answer.iter_lines():
                with self._more:
                    self.chunks += line.startswith("data: {")
                    self._more.notify_all()
        with self._more:
            self.done = True
            self._more.notify_all()

    def gets_more(self) -> bool:
        """Wait for five chunks more; whether they came."""
        with self._more:
            wanted = self.chunks + 5
            self._more.wait_for(lambda: self.chunks >= wanted or self.done, LIMIT_S)
            return self.chunks >= wanted


@pytest.fixture
def kernel(tiny_folder: Path) -> Iterator[Kernel]:
    kernel = started()
    kernel.run("%load_ext mtplx_kernel\nimport mtplx_kernel as mk")
    kernel.run(f"%mtplx load '{tiny_folder}' --scheduler cooperative")
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


def test_cells_and_clients_share_the_model_and_leave_with_the_kernel(kernel: Kernel) -> None:
    ran = kernel.run("%mtplx serve")
    port = int(kernel.value("mk.current_endpoint().port"))
    token = kernel.value("mk.current_endpoint().token").strip("'")
    (result,) = ran.contents("execute_result")
    assert token not in str(result) + ran.text("stdout") + ran.text("stderr")

    client = Client(port, token)
    assert client.gets_more()
    assert kernel.run("%%mtplx --raw --max-tokens 40\nHi").reply["status"] == "ok"
    assert client.gets_more()
    ran = kernel.run(f"{ENDLESS}\nHi", kernel.interrupt_once())
    assert ran.reply["ename"] == "GenerationInterrupted"
    assert client.gets_more()

    process = kernel.manager.provisioner.process  # type: ignore[union-attr]
    kernel.client.shutdown()
    assert process.wait(timeout=LIMIT_S) == 0
    client.thread.join(timeout=LIMIT_S)
    assert client.done
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", port)) != 0


def test_three_streams_are_complete_although_a_cell_is_interrupted(kernel: Kernel) -> None:
    kernel.run("%mtplx scheduler mtp_batch --width 4")
    kernel.run("%mtplx serve")
    asked = MTPLXClient(
        kernel.value("mk.current_endpoint().url").strip("'"),
        token=kernel.value("mk.current_endpoint().token").strip("'"),
    )
    prompts = ("Once", "Twice", "Thrice")
    with asked, ThreadPoolExecutor(len(prompts)) as pool:
        streams = [asked.stream(prompt, max_tokens=500, temperature=0) for prompt in prompts]
        begun = [next(stream) for stream in streams]
        texts = [pool.submit("".join, stream) for stream in streams]
        ran = kernel.run(f"{ENDLESS}\nHi", kernel.interrupt_once())
        assert ran.reply["ename"] == "GenerationInterrupted"
        assert kernel.value("mk.current().status()['running']") == "3"
        assert kernel.run("%%mtplx --raw --max-tokens 5\nHi").reply["status"] == "ok"
        told = [first + rest.result(LIMIT_S) for first, rest in zip(begun, texts, strict=True)]
    for stream, prompt, text in zip(streams, prompts, told, strict=True):
        assert stream.completion.usage is not None
        assert stream.completion.usage.completion_tokens == 500
        kernel.run(f"alone = mk.current().generate({prompt!r}, raw=True, max_tokens=500)")
        assert kernel.value(f"alone.text == {text!r}") == "True"
    kernel.run("%mtplx stop")
