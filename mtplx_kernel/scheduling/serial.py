"""serial: strict first in, first out; one request at a time from start to end."""

from __future__ import annotations

from typing import Any

from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Prefill, Quantum, Ran
from mtplx_kernel.scheduling.queue import Queue


class SerialPolicy:
    """The reference for every other mode.

    Parameters
    ----------
    machine
        Says how many prompt tokens a prefill quantum may take.
    """

    name = "serial"
    rule = "fifo"
    drafts = True

    def __init__(self, machine: Machine) -> None:
        self._chunk = machine.chunk
        self._queue = Queue()
        self._current: str | None = None
        self._left = 0
        self._ended = 0

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Queue behind all others."""
        self._queue.push(arrival, now)

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request, wherever in the queue it is."""
        if request_id == self._current:
            self._current = None
            self._ended += 1
        elif self._queue.take(request_id):
            self._ended += 1

    def rewind(self, request_id: str, prefill: int) -> None:
        """Feed the request's tokens anew."""
        if request_id == self._current:
            self._left = prefill

    def next(self, now: float) -> Quantum | None:
        """Go on with the oldest request."""
        if self._current is None and (first := self._queue.first) is not None:
            self._queue.take(first.arrival.request_id)
            self._current, self._left = first.arrival.request_id, first.arrival.prefill
        if self._current is None:
            return None
        if self._left == 0:
            return Decode((self._current,))
        return Prefill((self._current,), (min(self._left, self._chunk),))

    def ran(self, quantum: Quantum, ran: Ran, now: float) -> None:
        """Note how much of the prompt is left."""
        if self._current is not None:
            self._left = ran.prefill_left.get(self._current, self._left)

    def withdraw(self) -> list[Arrival]:
        """Hand back all but the request that runs."""
        return self._queue.hand_back()

    def snapshot(self) -> dict[str, Any]:
        """How many requests are open and how many have ended."""
        running = self._current is not None
        return {"open_requests": len(self._queue) + running, "ended_requests": self._ended}
