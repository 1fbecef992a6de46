"""How long something took, over and over: how often, and a summary of the latest times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SAMPLES = 256
"""Times that a summary looks back on."""


@dataclass(slots=True)
class Times:
    """Times in seconds.

    Attributes
    ----------
    count
        How many there were.
    latest
        The last of them.
    """

    count: int = 0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def add(self, seconds: float) -> None:
        """Take one time more."""
        self.count += 1
        self.latest.append(seconds)

    def summary(self) -> dict[str, float]:
        """The count of all, and mean, median, 95th percentile and maximum of the latest."""
        if not self.latest:
            return {"count": 0}
        ordered = sorted(self.latest)
        last = len(ordered) - 1
        return {
            "count": self.count,
            "mean": sum(ordered) / len(ordered),
            "p50": ordered[round(0.5 * last)],
            "p95": ordered[round(0.95 * last)],
            "max": ordered[-1],
        }
