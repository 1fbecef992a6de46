"""serial: strict first in, first out; one request at a time from start to end."""

from __future__ import annotations

from typing import Any

from mtplx_kernel.scheduling.policy import Arrival, Decode, Prefill, Quantum


class SerialPolicy:
    """The reference for every other mode.

    Parameters
    ----------
    chunk
        Most prompt tokens of one prefill quantum.
    """

    name = "serial"

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._prefill_left: dict[str, int] = {}
        self._ended = 0

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Queue behind all others."""
        self._prefill_left[arrival.request_id] = arrival.prefill

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request, wherever in the queue it is."""
        if self._prefill_left.pop(request_id, None) is not None:
            self._ended += 1

    def next(self, now: float) -> Quantum | None:
        """Go on with the oldest request."""
        for request_id, left in self._prefill_left.items():
            if left == 0:
                return Decode((request_id,))
            tokens = min(left, self._chunk)
            self._prefill_left[request_id] = left - tokens
            return Prefill(request_id, tokens)
        return None

    def snapshot(self) -> dict[str, Any]:
        """How many requests are open and how many have ended."""
        return {"open_requests": len(self._prefill_left), "ended_requests": self._ended}
