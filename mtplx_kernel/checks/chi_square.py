"""Pearson's chi-square test of draws against probabilities, without a statistics package."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LEAST_EXPECTED = 5.0
"""Rarer outcomes are put together: below this the statistic is not chi-square distributed."""
_TINY = 1e-300
_PRECISION = 1e-15
_TERMS = 10_000


@dataclass(frozen=True, slots=True)
class Fit:
    """How well draws fit a law.

    Attributes
    ----------
    statistic, freedom
        Pearson's statistic and its degrees of freedom; 0 where one outcome has all the mass.
    p_value
        The chance that draws from the law fit as badly or worse.
    """

    statistic: float
    freedom: int
    p_value: float


def fit(counts: Mapping[int, int], law: Mapping[int, float]) -> Fit:
    """Test draws against a law.

    Parameters
    ----------
    counts
        How often each outcome was drawn.
    law
        Probabilities by outcome, with a sum of 1. An outcome it does not have is impossible.
    """
    draws = sum(counts.values())
    if any(n and law.get(outcome, 0.0) == 0.0 for outcome, n in counts.items()):
        return Fit(math.inf, 1, 0.0)
    bins = _bins(counts, law, draws)
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in bins)
    freedom = len(bins) - 1
    return Fit(statistic, freedom, survival(statistic, freedom) if freedom else 1.0)


def survival(statistic: float, freedom: int) -> float:
    """The chance that a chi-square variable is at least this large.

    It is Q(freedom / 2, statistic / 2), the regularised upper incomplete gamma function, by its
    series below and its continued fraction above (NIST DLMF, 8.11.4 and 8.9.2).
    """
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        return max(0.0, 1.0 - scale * _series(a, x))
    return scale * _fraction(a, x)


def _bins(
    counts: Mapping[int, int], law: Mapping[int, float], draws: int
) -> list[tuple[int, float]]:
    """Seen and expected numbers of the likely outcomes, and of all others together."""
    bins = [(counts.get(o, 0), p * draws) for o, p in law.items() if p * draws >= LEAST_EXPECTED]
    rest = (draws - sum(seen for seen, _ in bins), draws - sum(e for _, e in bins))
    if rest[1] >= LEAST_EXPECTED or not bins:
        return [*bins, rest]
    # Too small to stand alone: it joins the rarest of the others.
    rarest = min(range(len(bins)), key=lambda n: bins[n][1])
    bins[rarest] = (bins[rarest][0] + rest[0], bins[rarest][1] + rest[1])
    return bins


def _series(a: float, x: float) -> float:
    term = total = 1.0 / a
    for n in range(1, _TERMS):
        term *= x / (a + n)
        total += term
        if term < total * _PRECISION:
            break
    return total


def _fraction(a: float, x: float) -> float:
    """Lentz's method."""
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    value = d
    for n in range(1, _TERMS):
        factor = -n * (n - a)
        b += 2
        d = factor * d + b
        d = 1 / (d if abs(d) > _TINY else _TINY)
        c = b + factor / c
        c = c if abs(c) > _TINY else _TINY
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value
