"""What came of a plan's requests, and what a side is that serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from benchmarks.arrivals import Ask, Plan


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request. Times are `time.perf_counter()` seconds.

    Attributes
    ----------
    asked
        When its user wanted it: for the first of a chain the planned time, however late the side
        took it.
    queue_wait_s
        From asking to the first forward over its prompt.
    arrivals
        When each token reached the user.
    cycles
        For each token, which forward of its row it came from; several may come from one.
    cached_tokens
        How many of the prompt's came from a prefix cache.
    """

    ask: Ask
    asked: float
    queue_wait_s: float
    ids: tuple[int, ...]
    arrivals: tuple[float, ...]
    cycles: tuple[int, ...]
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """From asking to the first token."""
        return self.arrivals[0] - self.asked

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / (len(self.ids) - 1)

    @property
    def tok_s(self) -> float:
        """Tokens a second from asking to the last token: waiting counts."""
        return len(self.ids) / (self.arrivals[-1] - self.asked)

    @property
    def blocks(self) -> tuple[float, ...]:
        """When each cycle's first token arrived."""
        return tuple(
            at
            for n, (at, cycle) in enumerate(zip(self.arrivals, self.cycles, strict=True))
            if n == 0 or cycle != self.cycles[n - 1]
        )


@dataclass(frozen=True, slots=True)
class PlanRun:
    """A plan served once by one side; the order is the plan's, chain by chain."""

    served: tuple[Served, ...]

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        return max(s.arrivals[-1] for s in self.served) - min(s.asked for s in self.served)

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(len(s.ids) for s in self.served)

    @property
    def tok_s(self) -> float:
        """Tokens a second of all streams together."""
        return self.tokens / self.seconds


class PlanSide(Protocol):
    """One of the things that are compared."""

    name: str

    def serve(self, plan: Plan) -> PlanRun:
        """Answer a plan's requests as they come, past any end token."""
        ...
