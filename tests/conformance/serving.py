"""A real endpoint: `mtplx-kernel serve` in a process of its own, from its start to a clean stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import httpx

from tests.conformance.load import Target

ROOT = Path(__file__).parents[2]
TOKEN = "conformance"
STOP_S = 60
SERVING = re.compile(r"Serving (\S+) at (\S+)")
ENDED = 0


class NoCleanStop(Exception):
    """An endpoint that did not end as it must."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running endpoint and its process."""

    target: Target
    process: subprocess.Popen[str]


@contextmanager
def serving(model: str, *options: str, **environment: str) -> Iterator[Served]:
    """Serve a model while the block runs, then stop it as a user does.

    Raises
    ------
    NoCleanStop
        If it does not end with code 0, if it says of an exception, or if its port is still taken.
    """
    command = [sys.executable, "-m", "mtplx_kernel.cli", "serve", model, "--token", TOKEN, *options]
    environ = {**os.environ, **environment}
    with (
        TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=environ
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = SERVING.match(process.stdout.readline())
            if found is None:
                log.seek(0)
                raise RuntimeError(f"{' '.join(command)} did not start:\n{log.read()}")
            yield Served(Target(url=found[2], token=TOKEN, model=found[1]), process)
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
        finally:
            process.kill()
        log.seek(0)
        _check_end(process.returncode, log.read(), found[2])


def _check_end(code: int, said: str, url: str) -> None:
    if code != ENDED or "Traceback" in said:
        raise NoCleanStop(f"the endpoint ended with code {code} and said:\n{said}")
    place = httpx.URL(url)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((place.host, place.port))
        except OSError as error:
            raise NoCleanStop(f"the port is not free after the end: {error}") from None
