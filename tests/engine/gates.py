"""Ways to hold the owner thread at a known point, so that tests need no sleeps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.runner import Runner

PATIENCE_S = 60
"""When a wait that should end at once is given up; no test passes or fails by being fast."""


class Gate:
    """A token callback that stops the owner thread at one token until it is opened."""

    def __init__(self, at: int = 1) -> None:
        self.tokens: list[int] = []
        self._at = at
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self, token: int, text: str) -> None:
        self.tokens.append(token)
        if len(self.tokens) == self._at:
            self._reached.set()
            assert self._opened.wait(PATIENCE_S)

    def await_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S)

    def open(self) -> None:
        self._opened.set()


def interrupt_after(count: int) -> Callable[[int, str], None]:
    """A token callback that sends the main thread SIGINT at one token, as Ctrl-C would."""
    seen: list[int] = []

    def on_token(token: int, text: str) -> None:
        seen.append(token)
        if len(seen) == count:
            interrupt_main_thread()

    return on_token


def interrupt_main_thread() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def on_owner(engine: Engine, job: Callable[[Runner], Any]) -> Any:
    """Run something on the owner thread, between two quanta, and return its result."""
    results: list[Any] = []
    ran = threading.Event()

    def mail(runner: Runner) -> None:
        results.append(job(runner))
        ran.set()

    engine._owner.post(mail)
    assert ran.wait(PATIENCE_S)
    return results[0]


def in_time(call: Callable[[], Any]) -> Any:
    """The result of a call that must not wait for ever, or what it raised."""
    ends: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            ends.append((call(), None))
        except BaseException as error:
            ends.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert ends, "it waits for ever"
    ((result, error),) = ends
    if error is not None:
        raise error
    return result


def owner_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("mtplx-owner")]
