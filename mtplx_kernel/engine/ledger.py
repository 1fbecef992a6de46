"""The open requests of an engine: a bounded queue, closed for good when the engine ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from mtplx_kernel.engine.request import Handle
from mtplx_kernel.errors import EngineClosed, QueueFull

State = Literal["running", "closed", "dead"]


class Ledger:
    """Who is waiting for what. Safe to use from any thread.

    Parameters
    ----------
    limit
        How many requests may wait for their first forward.

    Attributes
    ----------
    state, reason
        Whether requests are taken, and why not.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.state: State = "running"
        self.reason: str | None = None
        self._handles: dict[str, Handle] = {}
        self._opened = 0
        self._lock = threading.Lock()

    def open(self, make: Callable[[str], Handle], post: Callable[[Handle], None]) -> Handle:
        """Register a request and post it as one step: none is posted after the end.

        Parameters
        ----------
        make
            Builds the handle for a new request id.
        post
            Hands it to the owner thread.

        Raises
        ------
        EngineClosed, QueueFull
            If no request is taken, now or at all.
        """
        with self._lock:
            self.check_open()
            waiting = self._waiting()
            if waiting >= self.limit:
                raise QueueFull(
                    f"{waiting} requests wait, as many as may: try again when some have ended"
                )
            self._opened += 1
            handle = make(f"req-{self._opened}")
            self._handles[handle.request_id] = handle
            post(handle)
        return handle

    def forget(self, request_id: str) -> None:
        """Drop a request that has ended."""
        with self._lock:
            self._handles.pop(request_id, None)

    def shut(self, state: State, reason: str) -> list[Handle]:
        """Take no more requests; the first reason counts. Returns those still open."""
        with self._lock:
            if self.state == "running":
                self.state, self.reason = state, reason
            return list(self._handles.values())

    def bury(self, reason: str) -> None:
        """The owner thread died: take no more requests and tell every waiting caller."""
        for handle in self.shut("dead", reason):
            handle.fail(EngineClosed(reason), time.perf_counter())

    def check_open(self) -> None:
        """Raise EngineClosed unless requests are taken."""
        if self.state != "running":
            raise EngineClosed(f"the engine takes no requests: {self.reason}; load a model again")

    def handles(self) -> list[Handle]:
        """The open requests, oldest first."""
        with self._lock:
            return list(self._handles.values())

    def counts(self) -> tuple[int, int]:
        """How many requests wait, and how many run."""
        with self._lock:
            waiting = self._waiting()
            return waiting, len(self._handles) - waiting

    def _waiting(self) -> int:
        return sum(1 for h in self._handles.values() if h.window.admitted is None)
