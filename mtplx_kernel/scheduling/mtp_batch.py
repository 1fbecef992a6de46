"""mtp_batch: cohorts of one key decode together, several tokens a row a cycle."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mtplx_kernel.scheduling.batch import Batch
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Quantum, Ran, Serve, Wait
from mtplx_kernel.scheduling.queue import Queue, Waiting

Kind = tuple[str, str | None]
"""What rows of one cohort share: their key, and the name of their closed cohort, if it is one."""


@dataclass(slots=True)
class Cohort:
    """The cohort that runs.

    Attributes
    ----------
    name
        Made of its first request's id, so no two cohorts of an engine share it.
    kind
        Who may be in it.
    solo
        The only request of a closed cohort: nobody can join it, so it is served alone.
    widest
        Most rows that it decoded at once.
    """

    name: str
    kind: Kind
    solo: str | None = None
    widest: int = 0


class MTPBatchPolicy:
    """One cohort runs at a time.

    A cohort is sealed when it is full, or when `wait_ms` has passed since its first job; a closed
    cohort when all its members have come. Cohorts are sealed in the order of their oldest jobs, so
    a job with n jobs before it is in one of the next n + 1 cohorts, if it is ready; and nobody
    refills who might, as far as is measured, keep another kind's oldest job waiting beyond
    `max_wait_ms`. A closed cohort whose members do
    not all come within `max_wait_ms` begins without them.

    Parameters
    ----------
    options
        All but `ttft_ms` and `experimental` count.
    machine
        What the model and the machine can do.
    """

    name = "mtp_batch"
    rule = "cohorts"
    drafts = True

    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        self._wait = options.wait_ms / 1000
        self._max_wait = options.max_wait_ms / 1000
        self._sealed = options.sealed
        self._queue = Queue()
        self._batch = Batch(options, machine)
        self._cohort: Cohort | None = None
        self._ended = 0
        self._cohorts = 0
        self._refills = 0
        self._solo = 0

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Queue behind all others of its kind."""
        self._queue.push(arrival, now)

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request, wherever it is; its row is free at once."""
        if self._batch.leave(request_id) or self._queue.take(request_id):
            self._ended += 1

    def rewind(self, request_id: str, prefill: int) -> None:
        """Feed the request's tokens anew; it stays in its cohort."""
        self._batch.rewind(request_id, prefill)

    def next(self, now: float) -> Quantum | Wait | None:
        """Refill the cohort that runs, or seal the next one; then a prefill or a cycle, in turn."""
        if self._cohort is not None:
            self._refill(self._cohort, now)
        if not self._batch:
            self._end_cohort()
            self._seal(now)
        if self._cohort is not None:
            if self._cohort.solo is not None:
                return Serve(self._cohort.solo, self._cohort.name)
            return self._batch.next(self._cohort.name)
        waits = [self._ready(jobs) for jobs in self._kinds().values()]
        return Wait(min(waits)) if waits else None

    def ran(self, quantum: Quantum, ran: Ran, now: float) -> None:
        """Learn what the quantum cost."""
        self._batch.ran(quantum, ran)
        if isinstance(quantum, Decode) and self._cohort is not None:
            self._cohort.widest = max(self._cohort.widest, len(quantum.request_ids))

    def withdraw(self) -> list[Arrival]:
        """Hand back all who are in no cohort."""
        return self._queue.hand_back()

    def snapshot(self) -> dict[str, Any]:
        """Who waits by key, the cohorts so far, and the cycles by their width."""
        batch, cohort = self._batch, self._cohort if self._batch else None
        return {
            "open_requests": len(self._queue) + len(batch),
            "ended_requests": self._ended,
            "waiting": dict(Counter(waiting.arrival.key for waiting in self._queue)),
            "cohort": cohort and cohort.name,
            "cohort_key": cohort and cohort.kind[0],
            "prefilling": batch.prefilling,
            "decoding": batch.decoding,
            "width": batch.lanes.limit,
            "lanes": list(batch.lanes.widths),
            "dropped_lanes": list(batch.lanes.dropped),
            "cohorts": self._cohorts,
            "refills": self._refills,
            "solo_runs": self._solo,
            "batch_histogram": dict(sorted(batch.widths.items())),
            "fixed_width_histogram": dict(sorted(batch.lanes_used.items())),
            "target_verify_cycles": batch.widths.total(),
        }

    def _kinds(self) -> dict[Kind, list[Waiting]]:
        """Who waits by kind; the kind whose oldest job is the oldest comes first."""
        kinds: dict[Kind, list[Waiting]] = {}
        for waiting in self._queue:
            kinds.setdefault(_kind(waiting.arrival), []).append(waiting)
        return kinds

    def _ready(self, jobs: list[Waiting]) -> float:
        """When a cohort of these jobs may be sealed."""
        first = jobs[0]
        if first.arrival.cohort is not None:
            complete = len(jobs) >= self._queue.expected(first.arrival)
            return first.came if complete else first.came + self._max_wait
        room = self._batch.room([job.arrival for job in jobs])
        full = room == self._batch.lanes.limit or room < len(jobs)
        return first.came if full else first.came + self._wait

    def _seal(self, now: float) -> None:
        for kind, jobs in self._kinds().items():
            if self._ready(jobs) <= now:
                first = jobs[0].arrival.request_id
                self._cohort = Cohort(f"{kind[1] or 'cohort'}-{first}", kind)
                self._cohorts += 1
                room = self._batch.room([job.arrival for job in jobs])
                for job in jobs[:room]:
                    self._admit(job)
                closed = self._sealed if kind[1] is None else len(jobs) == 1
                if closed and room == 1:
                    self._cohort.solo = first
                return

    def _refill(self, cohort: Cohort, now: float) -> None:
        """Let the oldest jobs of the cohort's kind in.

        Members of a closed cohort that found no room at first may always come, as it is theirs.
        """
        for job in self._kinds().get(cohort.kind, []):
            if not (self._batch.room([job.arrival]) and self._batch.can_start(job.arrival)):
                return
            if cohort.kind[1] is None:
                if self._sealed or not self._batch or self._delays(job.arrival, cohort.kind, now):
                    return
                self._refills += 1
            self._admit(job)

    def _delays(self, arrival: Arrival, kind: Kind, now: float) -> bool:
        """Whether a refill may keep another kind's oldest job waiting for longer than it may.

        One that ends with the rows that run already keeps nobody waiting, until somebody is due.
        """
        waits = [jobs[0].came + self._max_wait for k, jobs in self._kinds().items() if k != kind]
        due = min(waits, default=None)
        if due is None or not self._batch.outlasts(arrival):
            return due is not None and due <= now
        return now + self._batch.seconds(arrival) >= due

    def _admit(self, job: Waiting) -> None:
        self._queue.take(job.arrival.request_id)
        self._batch.join(job.arrival)

    def _end_cohort(self) -> None:
        if self._cohort is not None and self._cohort.widest == 1:
            self._solo += 1
        self._cohort = None


def _kind(arrival: Arrival) -> Kind:
    return arrival.key, arrival.cohort
