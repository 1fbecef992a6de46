"""How many tokens to draft: from what a verify costs, and how often drafts were right lately."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

DECAY = 0.9
PROBE_EVERY = 16
"""Tokens without a verified draft after which one is tried all the same."""
PRIOR_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of one forward by the number of tokens in its block, as measured.

    Attributes
    ----------
    tokens
        Block lengths, ascending, the first 1.
    seconds
        One for each.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def cost(self, tokens: int) -> float:
        """What a block costs, in units of a block of one: linear between the measured lengths."""
        known, seconds = self.tokens, self.seconds
        right = min(max(bisect_left(known, tokens), 1), len(known) - 1)
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (known[right] - known[left])
        return (seconds[left] + slope * (tokens - known[left])) / seconds[0]


FLAT = CostCurve((1, 2), (1.0, 1.0))
"""Every block costs the same: drafts are free."""


@dataclass(slots=True)
class Rate:
    """A decayed share of drafts that were right, given that those before them were.

    Attributes
    ----------
    decay
        Weight of the past after each observation.
    """

    decay: float = DECAY
    hits: float = 0.0
    tries: float = 0.0

    def observe(self, drafted: int, accepted: int) -> None:
        """Count one verify: its right drafts, and the first wrong one if there was one."""
        self.hits = self.decay * self.hits + accepted
        self.tries = self.decay * self.tries + accepted + (accepted < drafted)

    def given(self, prior: float) -> float:
        """The share, shrunk to `prior` while there is little to go by."""
        return (self.hits + PRIOR_WEIGHT * prior) / (self.tries + PRIOR_WEIGHT)


@dataclass(slots=True)
class Ladder:
    """A rate for each depth: a head that feeds on itself is right less often the deeper it goes.

    Attributes
    ----------
    decay
        Weight of the past after each observation.
    """

    decay: float = DECAY
    rates: list[Rate] = field(default_factory=list)

    def observe(self, drafted: int, accepted: int) -> None:
        """Count one verify: a hit for each right draft, a miss for the first wrong one."""
        tried = min(drafted, accepted + 1)
        while len(self.rates) < tried:
            self.rates.append(Rate(self.decay))
        for depth, rate in enumerate(self.rates[:tried]):
            rate.observe(1, int(depth < accepted))

    def given(self, prior: Sequence[float]) -> list[float]:
        """The shares by depth, each shrunk to `prior`, whose last value holds for all deeper."""
        shares = [rate.given(_at(prior, depth)) for depth, rate in enumerate(self.rates)]
        return shares + list(prior[len(shares) :]) if shares else list(prior)


@dataclass(frozen=True, slots=True)
class Choice:
    """A depth, and what it promises.

    Attributes
    ----------
    value
        Expected tokens in the time of one plain decode.
    """

    depth: int
    value: float


def best_depth(
    curve: CostCurve,
    rates: Sequence[float],
    most: int,
    *,
    pending: int = 1,
    drafting: Callable[[int], float] = lambda depth: 0.0,
    least: int = 0,
) -> Choice:
    """The depth with the most expected tokens a second.

    With a chance r_i that draft i is right given that those before it were, k drafts yield
    1 + r_1 + r_1 r_2 + ... + r_1...r_k tokens a verify (Leviathan et al. 2023, arXiv:2211.17192,
    eq. 1, for equal r), which costs as much as a block of `pending` + k tokens, and the drafting.

    Parameters
    ----------
    rates
        r_1, r_2, ...; the last holds for all deeper.
    most, least
        The largest and the smallest depth to consider.
    pending
        Known tokens that the block starts with.
    drafting
        What making k drafts costs, in plain decodes.

    Returns
    -------
    Choice
        Of equals the smallest.
    """
    best = Choice(least, 0.0)
    tokens = power = 1.0
    for depth in range(most + 1):
        if depth:
            power *= _at(rates, depth - 1)
            tokens += power
        value = tokens / (curve.cost(pending + depth) + drafting(depth))
        if depth >= least and value > best.value:
            best = Choice(depth, value)
    return best


def _at(values: Sequence[float], index: int) -> float:
    return values[min(index, len(values) - 1)]
