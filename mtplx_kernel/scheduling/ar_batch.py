"""ar_batch: continuous batching, one token a request a step, with no drafts."""

from __future__ import annotations

from typing import Any

from mtplx_kernel.scheduling.batch import Batch
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Machine, Quantum, Ran
from mtplx_kernel.scheduling.queue import Queue


class ARBatchPolicy:
    """Requests join between two steps, first in, first out, and leave at once.

    Parameters
    ----------
    options
        `width`, `prefill_cap` and `itl_ms` count.
    machine
        What the model and the machine can do.
    """

    name = "ar_batch"
    rule = "continuous"
    drafts = False

    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        self._queue = Queue()
        self._batch = Batch(options, machine)
        self._ended = 0

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Queue behind all others."""
        self._queue.push(arrival, now)

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request, wherever it is."""
        if self._batch.leave(request_id) or self._queue.take(request_id):
            self._ended += 1

    def rewind(self, request_id: str, prefill: int) -> None:
        """Feed the request's tokens anew, before those of newcomers."""
        self._batch.rewind(request_id, prefill)

    def next(self, now: float) -> Quantum | None:
        """Let in who has room, then a prefill or a step, in turn."""
        while (first := self._queue.first) is not None:
            if not (self._batch.room([first.arrival]) and self._batch.can_start(first.arrival)):
                break
            self._queue.take(first.arrival.request_id)
            self._batch.join(first.arrival)
        return self._batch.next()

    def ran(self, quantum: Quantum, ran: Ran, now: float) -> None:
        """Learn what the quantum cost."""
        self._batch.ran(quantum, ran)

    def withdraw(self) -> list[Arrival]:
        """Hand back all who are not under way."""
        return self._queue.hand_back()

    def snapshot(self) -> dict[str, Any]:
        """Who is where, and the steps by their width."""
        batch = self._batch
        return {
            "open_requests": len(self._queue) + len(batch),
            "ended_requests": self._ended,
            "waiting": len(self._queue),
            "prefilling": batch.prefilling,
            "decoding": batch.decoding,
            "width": batch.lanes.limit,
            "lanes": list(batch.lanes.widths),
            "dropped_lanes": list(batch.lanes.dropped),
            "batch_histogram": dict(sorted(batch.widths.items())),
            "fixed_width_histogram": dict(sorted(batch.lanes_used.items())),
            "target_steps": batch.widths.total(),
        }
