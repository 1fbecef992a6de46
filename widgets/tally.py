"""Counts drafts from the timeline's cycles as they come, each of them once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtplx_kernel.engine.timeline import Cycle, Cycles, DecodeWindow
from mtplx_kernel.widgets.rates import AcceptanceView, Moment, Share, costs_of, depth_of

MOMENT_S = 0.5
"""Seconds of the finest moment that is kept; those without a cycle are not."""
MOMENTS_KEPT = 1200
MOMENTS_SHOWN = 60
NOBODY = "none"
"""Who drafted in cycles without drafts."""


@dataclass(slots=True)
class _Sums:
    cycles: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0

    def add(self, drafted: int, accepted: int, tokens: int) -> None:
        self.cycles += 1
        self.drafted += drafted
        self.accepted += accepted
        self.tokens += tokens


@dataclass(slots=True)
class AcceptanceTally:
    """Counts what is new in the decode windows each time that it is shown them.

    What it holds does not grow with the number of requests: ids of those that are remembered, and
    a bounded number of moments.
    """

    _seen: dict[str, tuple[int, bool]] = field(default_factory=dict)
    _requests: int = 0
    _ends: int = 0
    _missed: int = 0
    _all: _Sums = field(default_factory=_Sums)
    _depths: Counter[int] = field(default_factory=Counter)
    _right: Counter[int] = field(default_factory=Counter)
    _drafters: dict[str, _Sums] = field(default_factory=dict)
    _moments: deque[tuple[int, _Sums]] = field(default_factory=lambda: deque(maxlen=MOMENTS_KEPT))

    def take(self, windows: Sequence[DecodeWindow]) -> None:
        """Count the cycles and the requests that are new."""
        seen, self._seen = self._seen, {}
        news: list[tuple[float, int, int, int, str, bool]] = []
        for window in windows:
            self._requests += window.request_id not in seen
            known, over = seen.get(window.request_id, (0, False))
            fresh, missed, total = _new(window.cycles, known)
            self._missed += missed
            if window.end_token and not over and total > missed:
                self._ends, over = self._ends + 1, True
            self._seen[window.request_id] = total, over
            mtp = window.generation_mode == "mtp"
            news += [
                (c.at, c.drafted, c.accepted, c.tokens, c.drafter or NOBODY, mtp) for c in fresh
            ]
        for cycle in sorted(news):
            self._count(*cycle)

    def view(self, status: Mapping[str, Any]) -> AcceptanceView:
        """What was counted so far, beside what an engine's status tells of costs and depth."""
        deepest = max((depth for depth in self._depths), default=0)
        tried = [sum(n for d, n in self._depths.items() if d >= at) for at in range(deepest + 1)]
        right = [sum(n for a, n in self._right.items() if a >= at) for at in range(deepest + 1)]
        drafters = [
            Share(name, t.cycles, t.drafted, t.accepted)
            for name, t in self._drafters.items()
            if t.drafted
        ]
        return AcceptanceView(
            requests=self._requests,
            cycles=self._all.cycles,
            tokens=self._all.tokens,
            ends=self._ends,
            by_depth=tuple(
                Share(str(at), tried[at], tried[at], right[at]) for at in range(1, deepest + 1)
            ),
            by_drafter=tuple(sorted(drafters, key=lambda share: (-share.drafted, share.name))),
            moments=_merged([sums for _, sums in self._moments]),
            depths=tuple(sorted(self._depths.items())),
            costs=costs_of(status),
            in_force=depth_of(status),
            missed=self._missed,
        )

    def _count(
        self, at: float, drafted: int, accepted: int, tokens: int, drafter: str, mtp: bool
    ) -> None:
        place = int(at // MOMENT_S)
        if not self._moments or place > self._moments[-1][0]:
            self._moments.append((place, _Sums()))
        tallies = (self._all, self._moments[-1][1], self._drafters.setdefault(drafter, _Sums()))
        for tally in tallies:
            tally.add(drafted, accepted, tokens)
        if mtp:
            self._depths[drafted] += 1
            self._right[accepted] += 1


def _new(cycles: Cycles, known: int) -> tuple[list[Cycle], int, int]:
    """The cycles after the first `known`, how many of them are forgotten, and how many there are.

    It may be asked while cycles are recorded, and counts none of them twice.
    """
    if cycles.recorded <= known:
        return [], 0, known
    seen = cycles.remembered()
    fresh = seen.cycles[max(0, known - seen.dropped) :]
    return fresh, max(0, seen.dropped - known), seen.dropped + len(seen.cycles)


def _merged(moments: Sequence[_Sums]) -> tuple[Moment, ...]:
    """At most `MOMENTS_SHOWN` moments, each of equally many neighbours."""
    each = -(-len(moments) // MOMENTS_SHOWN) or 1
    found = []
    for start in range(0, len(moments), each):
        part = moments[start : start + each]
        found.append(
            Moment(
                start * MOMENT_S,
                len(part) * MOMENT_S,
                sum(m.cycles for m in part),
                sum(m.drafted for m in part),
                sum(m.accepted for m in part),
                sum(m.tokens for m in part),
            )
        )
    return tuple(found)
