"""Rows that share forwards: who prefills, who decodes, and whose turn it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mtplx_kernel.scheduling.lanes import Lanes
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.pace import SMALLEST_CHUNK, Pace
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Prefill, Quantum, Ran

MOST_GAPS = 2.0
"""Gaps that a prompt's chunk may take at once, where cycles give several tokens."""


class Batch:
    """The rows under way. Prefill and decode take turns, so running rows keep their pace.

    Parameters
    ----------
    options
        The width, the cap on prompts that prefill at a time, and the target gap between tokens.
    machine
        What the model and the machine can do.

    Attributes
    ----------
    lanes
        The widths at which it decodes.
    widths, lanes_used
        Decode cycles by their number of rows, and by their lane.
    """

    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        self._machine = machine
        self._cap = options.prefill_cap
        self._pace = Pace(machine, options.itl_ms)
        self.lanes = Lanes(min(options.width, machine.widest), machine.throughput)
        self._rows: dict[str, Arrival] = {}
        self._left: dict[str, int] = {}
        self._todo: dict[str, int] = {}
        self._queued: list[str] = []
        self._prefilling: list[str] = []
        self._decoding: list[str] = []
        self._decode_is_next = False
        self.widths: Counter[int] = Counter()
        self.lanes_used: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def prefilling(self) -> int:
        """How many prompts prefill."""
        return len(self._prefilling)

    @property
    def decoding(self) -> int:
        """How many rows decode."""
        return len(self._decoding)

    def room(self, arrivals: Sequence[Arrival]) -> int:
        """How many requests, in their order, have rows and memory; one alone always has."""
        tokens = [row.tokens for row in self._rows.values()]
        for taken, arrival in enumerate(arrivals):
            tokens.append(arrival.tokens)
            if len(tokens) > 1 and not (
                len(tokens) <= self.lanes.limit and self._machine.fits(tokens)
            ):
                return taken
        return len(arrivals)

    def can_start(self, arrival: Arrival) -> bool:
        """Whether a request would run at once, not behind other prompts."""
        if self._queued:
            return False
        return arrival.prefill == 0 or len(self._prefilling) < self._cap

    def outlasts(self, arrival: Arrival) -> bool:
        """Whether a request may go on when all rows that run now have ended."""
        return _answer(arrival) > max(self._todo.values(), default=0)

    def seconds(self, arrival: Arrival) -> float:
        """How long a request may take: its prompt, and a cycle for each token of its answer."""
        chunks = math.ceil(arrival.prefill / self._chunk())
        prompt = self._pace.prefill_seconds(arrival.prefill, chunks)
        return prompt + self._pace.cycle * _answer(arrival)

    def join(self, arrival: Arrival) -> None:
        """Take a row in."""
        self._rows[arrival.request_id] = arrival
        self._todo[arrival.request_id] = _answer(arrival)
        self._begin(arrival.request_id, arrival.prefill)

    def leave(self, request_id: str) -> bool:
        """Forget a row; False if it was none."""
        if self._rows.pop(request_id, None) is None:
            return False
        self._take_out(request_id)
        del self._left[request_id], self._todo[request_id]
        return True

    def rewind(self, request_id: str, prefill: int) -> None:
        """Feed a row's tokens anew."""
        if request_id in self._rows:
            self._take_out(request_id)
            self._begin(request_id, prefill)

    def next(self, cohort: str | None = None) -> Prefill | Decode | None:
        """What to run: prefill and decode in turn where both have rows."""
        self._start_queued()
        if self._decoding and (self._decode_is_next or not self._prefilling):
            self._decode_is_next = False
            return Decode(
                tuple(self._decoding),
                self.lanes.lane_for_width(len(self._decoding)),
                cohort,
                again=not self._prefilling,
            )
        if self._prefilling:
            self._decode_is_next = True
            return self._prefill(cohort)
        return None

    def ran(self, quantum: Quantum, ran: Ran) -> None:
        """Learn what a quantum cost and how much of the prompts is left."""
        if isinstance(quantum, Decode):
            width = len(quantum.request_ids)
            self.widths[width] += 1
            self.lanes_used[quantum.lane] += 1
            self._pace.cycled(sum(ran.tokens.values()), ran.seconds, width)
        elif isinstance(quantum, Prefill) and all(i in ran.fed for i in quantum.request_ids):
            fed = [count for count in ran.fed.values() if count]
            if fed:
                self._pace.prefilled(len(fed) * max(fed), ran.seconds)
        for request_id, left in ran.prefill_left.items():
            if request_id in self._rows:
                self._left[request_id] = left
        for request_id, count in ran.tokens.items():
            if request_id in self._rows:
                self._todo[request_id] -= count
        for request_id in [i for i in self._prefilling if self._left[i] == 0]:
            self._prefilling.remove(request_id)
            self._decoding.append(request_id)

    def _begin(self, request_id: str, prefill: int) -> None:
        self._left[request_id] = prefill
        (self._queued if prefill else self._decoding).append(request_id)
        self._start_queued()

    def _start_queued(self) -> None:
        while self._queued and len(self._prefilling) < self._cap:
            self._prefilling.append(self._queued.pop(0))

    def _take_out(self, request_id: str) -> None:
        for place in (self._queued, self._prefilling, self._decoding):
            if request_id in place:
                place.remove(request_id)

    def _prefill(self, cohort: str | None) -> Prefill:
        """One forward over the prompts, or over the oldest of them where the gap is small."""
        if not self._decoding:
            ids, share = self._prefilling, self._machine.chunk
        else:
            chunk = self._chunk()
            ids = list(self._prefilling)
            while len(ids) > 1 and chunk // len(ids) < min(SMALLEST_CHUNK, self._longest(ids)):
                ids.pop()
            share = chunk // len(ids)
        return Prefill(tuple(ids), tuple(min(self._left[i], share) for i in ids), cohort)

    def _chunk(self) -> int:
        """Prompt tokens between two cycles, so that the mean gap between tokens is the target.

        The tokens of one cycle come together, and so may the gaps before them: two at most, since
        whoever reads along sees each pause.
        """
        return self._pace.chunk(cycles=1, gaps=min(self._pace.burst, MOST_GAPS))

    def _longest(self, ids: Sequence[str]) -> int:
        return max(self._left[i] for i in ids)


def _answer(arrival: Arrival) -> int:
    """Most tokens of a request's answer."""
    return max(1, arrival.tokens - arrival.prefill)
