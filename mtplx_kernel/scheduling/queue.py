"""The requests that wait to be admitted, in the order in which they came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mtplx_kernel.scheduling.policy import Arrival


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue, and when it came."""

    arrival: Arrival
    came: float


class Queue:
    """First in, first out, except that anybody may be taken out."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self._gone: Counter[str] = Counter()
        self._closed = False

    def push(self, arrival: Arrival, now: float) -> None:
        """Queue a request behind all others."""
        self._waiting[arrival.request_id] = Waiting(arrival, now)

    def take(self, request_id: str) -> Waiting | None:
        """Take a request out, to admit or to forget it; None if it does not wait."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and (name := waiting.arrival.cohort) is not None:
            self._gone[name] += 1
            if self._gone[name] == waiting.arrival.members:
                del self._gone[name]
        return waiting

    def hand_back(self) -> list[Arrival]:
        """Empty the queue and admit nobody from now on.

        A closed cohort that is handed back in part expects only who is left of it.
        """
        self._closed = True
        back = [waiting.arrival for waiting in self._waiting.values()]
        self._waiting.clear()
        return [
            replace(arrival, members=self.expected(arrival)) if arrival.cohort else arrival
            for arrival in back
        ]

    def expected(self, arrival: Arrival) -> int:
        """How many members of a request's closed cohort have not left this queue."""
        return arrival.members - self._gone[arrival.cohort] if arrival.cohort else 1

    @property
    def first(self) -> Waiting | None:
        """Who is next; None if nobody may be admitted."""
        return next(iter(self), None)

    def __iter__(self) -> Iterator[Waiting]:
        """Those who may be admitted, the oldest first; other threads may read them too."""
        return iter(()) if self._closed else iter(list(self._waiting.values()))

    def __len__(self) -> int:
        return len(self._waiting)
