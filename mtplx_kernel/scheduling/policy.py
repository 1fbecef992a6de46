"""What a scheduler policy is: it sees requests come and go and says which quantum runs next.

Policies are plain Python with no model behind them, deterministic given a clock, so they can be
tested with thousands of histories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

PREFILL_CHUNK = {"cpu": 128, "gpu": 1024}
"""Prompt tokens fed in one quantum, by device: a cancel during prefill waits for the quantum to
end, so it is no more than prefilling at full speed needs."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a policy knows of a request when it comes.

    Attributes
    ----------
    prefill
        Prompt tokens to feed before its first decode cycle.
    """

    request_id: str
    prefill: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Feed `tokens` prompt tokens of one request."""

    request_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Run one decode cycle over some requests."""

    request_ids: tuple[str, ...]


Quantum = Prefill | Decode


class Policy(Protocol):
    """One scheduler mode. Times are seconds of one monotonic clock."""

    name: str

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Take a request into the queue."""
        ...

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request: it ended, however it ended. Unknown ids are ignored."""
        ...

    def next(self, now: float) -> Quantum | None:
        """What to run now; None if there is nothing. The caller runs it before asking again."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Plain data for the status."""
        ...
