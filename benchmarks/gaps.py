"""How long a running stream stands still when a long prompt arrives beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.arrivals import Ask, Chain, Plan
from benchmarks.measure import EncodedPrompt, in_turn
from benchmarks.served import PlanRun, PlanSide
from benchmarks.streams import TAIL, percentile

ARRIVES_AFTER = 0.25
"""Of the stream's tokens, when the long prompt comes."""
NEWCOMER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Meeting:
    """A running stream and the long prompts that come beside it.

    Attributes
    ----------
    stream
        The running request; its answer should outlast a long prompt.
    newcomers
        A prompt for the warm-up and one for each round: none comes twice, so that no prefix cache
        can know it.
    """

    stream: Ask
    newcomers: tuple[EncodedPrompt, ...]

    def alone(self) -> Plan:
        """The stream without a newcomer."""
        return (Chain(0.0, (self.stream,)),)

    def together(self, turn: int) -> Plan:
        """The stream, and one newcomer when a part of the stream's tokens has come."""
        after = max(1, int(ARRIVES_AFTER * self.stream.tokens))
        newcomer = Ask(self.newcomers[turn], NEWCOMER_TOKENS)
        return (*self.alone(), Chain(0.0, (newcomer,), after))


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between a stream's blocks of tokens.

    Attributes
    ----------
    before
        Of the stream alone.
    during
        From the newcomer's arrival until its first token.
    """

    before: tuple[float, ...]
    during: tuple[float, ...]


def measure(
    sides: Sequence[PlanSide],
    meeting: Meeting,
    done: Callable[[], object] = lambda: None,
) -> dict[str, list[Gaps]]:
    """Let every side serve the stream alone once, and then the meeting in every round."""
    alone: dict[str, PlanRun] = {}
    for side in sides:
        side.serve(meeting.together(0))  # a warm-up, with everything that will run
        alone[side.name] = side.serve(meeting.alone())
        done()
    found: dict[str, list[Gaps]] = {side.name: [] for side in sides}
    for turn in range(1, len(meeting.newcomers)):
        for side in in_turn(sides, turn):
            run = side.serve(meeting.together(turn))
            found[side.name].append(gaps_of(alone[side.name], run))
            done()
    return found


def gaps_of(alone: PlanRun, together: PlanRun) -> Gaps:
    """The gaps of a stream alone, and while the newcomer's prompt was taken.

    A gap counts that had not ended when the newcomer came, and that began before its first token.
    """
    stream, newcomer = together.served
    during = [
        b - a for a, b in pairwise(stream.blocks) if b > newcomer.asked and a < newcomer.arrivals[0]
    ]
    return Gaps(tuple(b - a for a, b in pairwise(alone.served[0].blocks)), tuple(during))


def rows(found: dict[str, list[Gaps]], target_ms: float) -> list[dict[str, Any]]:
    """One plain row a side; percentiles are over all rounds' gaps together."""
    return [
        {
            "load": "gap",
            "side": side,
            "rounds": len(gaps),
            "gaps": sum(len(g.during) for g in gaps),
            "alone_ms_p50": _ms(gaps[0].before, 50),
            "gap_ms_p50": _ms(_during(gaps), 50),
            "gap_ms_p95": _ms(_during(gaps), TAIL),
            "gap_ms_max": _ms(_during(gaps), 100),
            "target_ms": target_ms,
        }
        for side, gaps in found.items()
    ]


def ratios(found: dict[str, list[Gaps]], side: str, target_ms: float) -> dict[str, float]:
    """The p95 gap of one side over the target: at most 1 where it is kept."""
    if side not in found:
        return {}
    by_round = [percentile(gaps.during, TAIL) for gaps in found[side]]
    return {f"{side}_gap_p95_vs_target": 1000 * median(by_round) / target_ms}


def _during(gaps: Sequence[Gaps]) -> list[float]:
    return [gap for one in gaps for gap in one.during]


def _ms(seconds: Sequence[float], percent: float) -> float:
    return round(1000 * percentile(seconds, percent), 2)
