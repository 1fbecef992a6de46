"""cooperative: many requests make progress in turn, each alone in its forwards."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.pace import Pace
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Prefill, Quantum, Ran
from mtplx_kernel.scheduling.queue import Queue, Waiting


@dataclass(slots=True)
class Turns:
    """A request under way.

    Attributes
    ----------
    left
        Prompt tokens still to feed.
    virtual
        Its service so far, in decoded tokens by weight, from where it began.
    served
        The number of the last quantum that was its own.
    spoke
        Whether it has decoded.
    """

    waiting: Waiting
    left: int
    virtual: float
    served: int
    spoke: bool = False

    @property
    def weight(self) -> float:
        """Its share."""
        return self.waiting.arrival.weight


class CooperativePolicy:
    """Fair by virtual time: who has had the fewest tokens for its weight goes next.

    A prompt token counts as the part of a decoded one that it costs. A newcomer begins where the
    requests under way are: at the lowest virtual time, or at the mean that the service has reached
    if that is later, so that a stream of short requests cannot keep a long one waiting.

    Two things come before that order. After a chunk, as many decode cycles run as there are
    requests that decode, so that a gap between two tokens holds one chunk, sized to fit. And a
    request close to its first-token deadline goes first, at no charge, at most every other
    quantum; where other prompts wait, every other chunk of those goes to them.

    With n requests under way at most, W the most that their weights came to, w a request's own and
    C the most tokens that a quantum counted for, that request has a quantum again within
    4n (C (2W/w + n) + 1) others.

    Parameters
    ----------
    options
        `width`, `itl_ms` and `ttft_ms` count.
    machine
        What the model and the machine can do.
    """

    name = "cooperative"
    rule = "fair_turns"
    drafts = True

    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        self._width = min(options.width, machine.widest)
        self._first_token = options.ttft_ms / 1000
        self._machine = machine
        self._pace = Pace(machine, options.itl_ms)
        self._queue = Queue()
        self._rows: dict[str, Turns] = {}
        self._turn: Turns | None = None
        self._floor = 0.0
        self._quanta = 0
        self._cycles_since_chunk = 0
        self._hurried = False
        self._free = False
        self._chunk_was_free = False
        self._hurried_total = 0
        self._ended = 0

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Queue behind all others; as many as `width` are under way."""
        self._queue.push(arrival, now)

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request, wherever it is."""
        if self._rows.pop(request_id, None) or self._queue.take(request_id):
            self._ended += 1

    def rewind(self, request_id: str, prefill: int) -> None:
        """Feed the request's tokens anew; its virtual time stays."""
        if request_id in self._rows:
            self._rows[request_id].left = prefill

    def next(self, now: float) -> Quantum | None:
        """A chunk or a cycle of the request whose turn it is."""
        self._admit()
        if not self._rows:
            return None
        request_id = self._choose(now)
        self._turn = row = self._rows[request_id]
        self._quanta += 1
        row.served = self._quanta
        if row.left == 0:
            self._cycles_since_chunk += 1
            return Decode((request_id,), again=len(self._rows) == 1)
        self._cycles_since_chunk = 0
        return Prefill((request_id,), (min(row.left, self._pace.chunk(self._decoding())),))

    def ran(self, quantum: Quantum, ran: Ran, now: float) -> None:
        """Learn what the quantum cost, and charge it."""
        row = self._turn
        if row is None:
            return
        request_id = row.waiting.arrival.request_id
        if isinstance(quantum, Decode):
            tokens = ran.tokens.get(request_id, 0)
            self._pace.cycled(tokens, ran.seconds)
            self._charge(row, tokens)
            row.spoke = True
        elif isinstance(quantum, Prefill):
            fed = ran.fed.get(request_id, 0)
            if fed:
                self._pace.prefilled(fed, ran.seconds)
            self._charge(row, self._pace.worth(fed, ran.seconds))
            row.left = ran.prefill_left.get(request_id, 0)

    def withdraw(self) -> list[Arrival]:
        """Hand back all who are not under way."""
        return self._queue.hand_back()

    def snapshot(self) -> dict[str, Any]:
        """Who is where, and how often a deadline went first."""
        return {
            "open_requests": len(self._queue) + len(self._rows),
            "ended_requests": self._ended,
            "waiting": len(self._queue),
            "prefilling": len(self._rows) - self._decoding(),
            "decoding": self._decoding(),
            "width": self._width,
            "quanta": self._quanta,
            "out_of_turn": self._hurried_total,
        }

    def _admit(self) -> None:
        while (first := self._queue.first) is not None:
            arrival = first.arrival
            tokens = [row.waiting.arrival.tokens for row in self._rows.values()]
            if self._rows and not (
                len(self._rows) < self._width and self._machine.fits([*tokens, arrival.tokens])
            ):
                return
            self._queue.take(arrival.request_id)
            lowest = min((row.virtual for row in self._rows.values()), default=self._floor)
            self._rows[arrival.request_id] = Turns(
                first, arrival.prefill, max(lowest, self._floor), self._quanta
            )

    def _decoding(self) -> int:
        return sum(row.left == 0 for row in list(self._rows.values()))

    def _choose(self, now: float) -> str:
        """Whose turn it is; also whether it is out of turn, and whether it is free."""
        chunks_too = self._cycles_since_chunk >= self._decoding()
        may = {i: row for i, row in self._rows.items() if chunks_too or row.left == 0}
        prompts = [i for i, row in may.items() if row.left]
        chosen = in_turn = self._lowest(may)
        close = next((i for i, row in may.items() if self._is_close(row, now)), in_turn)
        self._free = False
        self._hurried = not self._hurried and close != in_turn
        if self._hurried:
            self._hurried_total += 1
            # Other prompts have to get on too: of two chunks in a hurry one is theirs, and counts.
            shared = may[close].left > 0 and self._chunk_was_free and len(prompts) > 1
            chosen = self._lowest(prompts) if shared else close
            self._free = not shared
        if chosen in prompts:
            self._chunk_was_free = self._free
        return chosen

    def _lowest(self, names: Iterable[str]) -> str:
        """Who is first by virtual time, or was served longer ago."""
        return min(names, key=lambda i: (self._rows[i].virtual, self._rows[i].served))

    def _is_close(self, row: Turns, now: float) -> bool:
        """Whether twice the time to its first token is more than is left of its deadline."""
        if row.spoke:
            return False
        others = self._decoding()
        chunks = math.ceil(row.left / self._pace.chunk(others))
        cycles = (chunks + 1) * max(others, 1)
        needed = self._pace.prefill_seconds(row.left, chunks) + cycles * self._pace.cycle
        return now + 2 * needed >= row.waiting.came + self._first_token

    def _charge(self, row: Turns, tokens: float) -> None:
        """Count a quantum in turn; a request that ended in it has had its service all the same."""
        if self._free:
            return
        tokens = max(tokens, 1)
        under_way = {id(other): other.weight for other in (*self._rows.values(), row)}
        self._floor = max(self._floor, row.virtual) + tokens / sum(under_way.values())
        row.virtual += tokens / row.weight
