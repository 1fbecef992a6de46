"""From served requests to figures: percentiles, fairness, rates and their ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.served import PlanRun
from benchmarks.summary import ratio

TAIL = 95


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest of the values that at least so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are alike, 1/n where one has everything.

    (sum x)^2 / (n sum x^2); Jain, Chiu and Hawe, DEC TR-301, 1984.
    """
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def stream_rate(run: PlanRun) -> float:
    """The median user's tokens a second, waiting included."""
    return median(s.tok_s for s in run.served)


def joint_rate(runs: Iterable[PlanRun]) -> float:
    """Tokens a second of several runs one after the other."""
    both = list(runs)
    return sum(run.tokens for run in both) / sum(run.seconds for run in both)


def ratios(
    rates: Mapping[str, Sequence[float]], pairs: Iterable[tuple[str, str]], where: str
) -> dict[str, float]:
    """Medians over rounds of ratios within a round, for those pairs of sides that both ran.

    Parameters
    ----------
    rates
        Of each side, in each round.
    where
        Put behind the name, after an @; may be empty.
    """
    suffix = f"@{where}" if where else ""
    return {
        f"{over}_vs_{under}{suffix}": ratio(rates[over], rates[under])
        for over, under in pairs
        if over in rates and under in rates
    }


def figures(runs: Sequence[PlanRun]) -> dict[str, Any]:
    """One side's rounds as plain numbers.

    Rates and fairness are medians over rounds; percentiles are over all rounds' requests together.
    The p95 of a rate is what 95 in 100 streams reach.
    """
    totals = sorted(run.tok_s for run in runs)
    served = [s for run in runs for s in run.served]
    cycles = sum(len(s.blocks) for s in served)
    return {
        "rounds": len(runs),
        "requests": len(runs[0].served),
        "tokens": runs[0].tokens,
        "tok_s": round(median(totals), 3),
        "tok_s_low": round(totals[0], 3),
        "tok_s_high": round(totals[-1], 3),
        "stream_tok_s_p50": round(percentile((s.tok_s for s in served), 50), 3),
        "stream_tok_s_p95": round(percentile((s.tok_s for s in served), 100 - TAIL), 3),
        **_times("ttft_s", [s.ttft_s for s in served]),
        **_times("tpot_s", [s.tpot_s for s in served]),
        **_times("queue_wait_s", [s.queue_wait_s for s in served]),
        "jain": round(median(jain([s.tok_s for s in run.served]) for run in runs), 4),
        "tokens_per_cycle": round(sum(len(s.ids) for s in served) / cycles, 3),
        "cached_tokens": sum(s.cached_tokens for s in served),
    }


def _times(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_p50": round(percentile(seconds, 50), 5),
        f"{name}_p95": round(percentile(seconds, TAIL), 5),
    }
