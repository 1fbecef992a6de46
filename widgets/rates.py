"""How drafts fare: counts by depth, by drafter and over time, taken from the timeline's cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Share:
    """Drafts of one kind, and how many of them were right.

    Attributes
    ----------
    name
        The depth, or who drafted.
    cycles
        Cycles with such drafts.
    """

    name: str
    cycles: int
    drafted: int
    accepted: int

    @property
    def share(self) -> float:
        """How many of the drafts were right, from 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A stretch of time in which cycles were decoded.

    Attributes
    ----------
    start, seconds
        When it began and how long it is, in seconds of decoding: idle time does not count.
    """

    start: float
    seconds: float
    cycles: int
    drafted: int
    accepted: int
    tokens: int

    @property
    def share(self) -> float | None:
        """How many of its drafts were right; None where there were none."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_cycle(self) -> float:
        """Tokens that each verify gave."""
        return self.tokens / self.cycles if self.cycles else 0.0


@dataclass(frozen=True, slots=True)
class CostPoint:
    """What a forward of so many tokens takes, in milliseconds, as measured."""

    tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class AcceptanceView:
    """All that the acceptance view shows, as plain numbers.

    Attributes
    ----------
    tokens, ends
        Tokens decoded, and how many of them ended an answer and are not in it.
    by_depth
        Drafts at the first place, the second, and so on.
    by_drafter
        Who drafted, those with most drafts first.
    moments
        Over time, oldest first, each beginning where the one before ends.
    depths
        How many cycles of requests in mode mtp had so many drafts, by that number.
    costs
        The measured cost of forwards of one row; empty where it was not measured.
    in_force
        The depth of requests that name none, in words.
    missed
        Cycles that were forgotten before they were counted.
    """

    requests: int
    cycles: int
    tokens: int
    ends: int = 0
    by_depth: tuple[Share, ...] = ()
    by_drafter: tuple[Share, ...] = ()
    moments: tuple[Moment, ...] = ()
    depths: tuple[tuple[int, int], ...] = ()
    costs: tuple[CostPoint, ...] = ()
    in_force: str = "adaptive"
    missed: int = 0

    @property
    def drafted(self) -> int:
        """All drafts."""
        return sum(share.drafted for share in self.by_depth)

    @property
    def accepted(self) -> int:
        """All drafts that were right."""
        return sum(share.accepted for share in self.by_depth)

    @property
    def chosen(self) -> float:
        """Drafts a cycle in mode mtp, on average."""
        cycles = sum(n for _, n in self.depths)
        return sum(depth * n for depth, n in self.depths) / cycles if cycles else 0.0

    @property
    def chosen_ms(self) -> float | None:
        """What a forward of the chosen depth takes, by the curve; None without one."""
        return cost_at(self.costs, 1 + self.chosen)

    @property
    def summary(self) -> str:
        """All in one sentence."""
        requests = counted(self.requests, "request")
        if not self.cycles:
            return f"{requests}, nothing decoded yet"
        said = f"{requests}, {counted(self.tokens - self.ends, 'token')}"
        said += f" and {counted(self.ends, 'end token')}" if self.ends else ""
        said += f" in {counted(self.cycles, 'cycle')}"
        said += f" ({self.tokens / self.cycles:.2f} a cycle)"
        if not self.drafted:
            return f"{said}, no drafts"
        share = self.accepted / self.drafted
        right = f"{self.accepted} of {counted(self.drafted, 'draft')} right"
        return f"{said}, {right} ({share:.0%})"


def counted(number: int, word: str) -> str:
    """So many of something, in words."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def cost_at(costs: Sequence[CostPoint], tokens: float) -> float | None:
    """Milliseconds of a block, linear between the measured ones and level beyond; None without."""
    if not costs:
        return None
    if tokens <= costs[0].tokens:
        return costs[0].ms
    for left, right in pairwise(costs):
        if tokens <= right.tokens:
            part = (tokens - left.tokens) / (right.tokens - left.tokens)
            return left.ms + part * (right.ms - left.ms)
    return costs[-1].ms


def costs_of(status: Mapping[str, Any]) -> tuple[CostPoint, ...]:
    """The measured cost curve that an engine's status tells."""
    known = status.get("verify_ms") or {}
    return tuple(sorted((CostPoint(int(n), float(ms)) for n, ms in known.items()), key=_tokens))


def depth_of(status: Mapping[str, Any]) -> str:
    """The depth in force, in words."""
    if status.get("mode_reason"):
        return "no drafts"
    depth = status.get("depth") or {}
    number = depth.get("default")
    said = "adaptive" if number is None else str(number)
    return f"{said} ({depth['reason']})" if depth.get("reason") else said


def _tokens(point: CostPoint) -> int:
    return point.tokens
