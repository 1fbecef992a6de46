"""``mtplx-kernel serve`` as a process: what it says, whom it lets in, and how signals end it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from mtplx_kernel import cli, serve_command
from mtplx_kernel.errors import EngineClosed, MTPLXError

LIMIT_S = 120


class Server:
    """A process that serves, and what it said until it did."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        assert child.stderr is not None
        self.child = child
        self.line = child.stdout.readline()
        if not self.line:
            pytest.fail(child.stderr.read())
        self.model, self.url = re.fullmatch(r"Serving (.*) at (\S+)\n", self.line).groups()  # type: ignore[union-attr]
        self.before = child.stderr.readline()
        said = re.fullmatch(r"Token: (\S+)\n", child.stderr.readline())
        assert said is not None
        self.headers = {"Authorization": f"Bearer {said[1]}"}

    def told(self) -> str:
        """The next line of its errors."""
        assert self.child.stderr is not None
        return self.child.stderr.readline()

    def wish(self, max_tokens: int) -> dict[str, Any]:
        """What a client sends, to the route of completions."""
        return {
            "url": f"{self.url.removesuffix('/v1')}/v1/completions",
            "json": {
                "model": self.model,
                "prompt": "Once",
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            "headers": self.headers,
            "timeout": LIMIT_S,
        }


@contextmanager
def serving(folder: Path, cache: Path, *options: str) -> Iterator[Server]:
    child = subprocess.Popen(
        [sys.executable, "-m", "mtplx_kernel.cli", "serve", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MTPLX_KERNEL_CACHE": str(cache)},
    )
    try:
        yield Server(child)
    finally:
        child.kill()
        child.communicate()


def test_a_signal_lets_what_runs_finish(folder: Path, cache: Path) -> None:
    with serving(folder, cache, "--no-mtp") as server:
        assert server.before == f"Loading {folder} ...\n"
        with httpx.stream("POST", **server.wish(400)) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            first = next(lines)
            server.child.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        out, err = server.child.communicate(timeout=LIMIT_S)
        assert (server.child.returncode, out) == (0, "")
        assert err == "Finishing what runs; a second signal ends it.\n"
        assert first.startswith("data: {")
        assert rest[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in rest[:-1]]
        reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
        assert [reason for reason in reasons if reason] == ["length"]
        assert chunks[-1]["usage"]["completion_tokens"] == 400


def test_a_second_signal_ends_what_still_runs(folder: Path, cache: Path) -> None:
    with serving(folder, cache) as server:
        with httpx.stream("POST", **server.wish(90_000)) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.child.send_signal(signal.SIGINT)
            assert server.told() == "Finishing what runs; a second signal ends it.\n"
            late = httpx.post(**server.wish(1))
            assert late.status_code == 503
            assert late.json()["error"].keys() == {"message", "type", "param", "code"}
            server.child.send_signal(signal.SIGINT)
            with suppress(httpx.HTTPError):
                list(lines)
        out, err = server.child.communicate(timeout=LIMIT_S)
        assert (server.child.returncode, out) == (130, "")
        assert err == "mtplx-kernel: interrupted: what still ran was ended\n"


def test_a_port_in_use_is_found_out_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = cli.main(("serve", str(folder), "--port", str(port)))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"mtplx-kernel: --port {port} ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("a", "b"), "that is a word too many; write mtplx-kernel serve [MODEL] [options]"),
        (("--token", "a", "--no-auth"), "--token and --no-auth exclude each other"),
        (("--scheduler", "hyper"), "unknown option '--scheduler'; did you mean --scheduler-mode? "),
        (("--port", "70000"), "--port must be "),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert cli.main(("serve", *options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"mtplx-kernel: {message}")
    assert err.count("\n") == 1


def test_hyper_refuses_what_would_tune_it(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert cli.main(("serve", str(folder), "--scheduler-mode", "hyper", "--width", "4")) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1]) == (
        "",
        "mtplx-kernel: scheduler 'hyper' is not tunable: it runs one request at a time, alone and "
        "at once, so width=4 is refused; allowed: no options",
    )


class Ended:
    """Stands for an engine and an endpoint that may have ended."""

    def __init__(self, closed: bool, running: bool) -> None:
        self.closed, self.running = closed, running

    def status(self) -> dict[str, Any]:
        return {"reason": "the engine's owner thread died: OSError"}


def test_it_does_not_wait_on_when_nothing_is_served_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_command, "WATCH_S", 0.001)
    signals: Any = queue.SimpleQueue()
    dead: Any = Ended(closed=True, running=True)
    with pytest.raises(EngineClosed, match="the engine's owner thread died: OSError"):
        serve_command.wait_for_signal(signals, dead, dead)
    gone: Any = Ended(closed=False, running=False)
    with pytest.raises(MTPLXError, match="the endpoint has ended by itself; start it again"):
        serve_command.wait_for_signal(signals, gone, gone)
    signals.put(signal.SIGTERM)
    serve_command.wait_for_signal(signals, dead, dead)
