"""How many tokens to draft: from what a verify costs, and how often drafts were right lately."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

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


def best_depth(curve: CostCurve, rate: float, most: int, pending: int = 1) -> int:
    """The depth with the most expected tokens a second.

    With a chance `rate` that a draft is right given that those before it were, k drafts yield
    1 + rate + ... + rate^k tokens a verify (Leviathan et al. 2023, arXiv:2211.17192, eq. 1), which
    costs as much as a block of `pending` + k tokens.

    Parameters
    ----------
    most
        The largest depth to consider.
    pending
        Known tokens that the block starts with.

    Returns
    -------
    int
        From 0 to `most`; of equals the smallest.
    """
    best, best_value = 0, 1.0 / curve.cost(pending)
    tokens = power = 1.0
    for depth in range(1, most + 1):
        power *= rate
        tokens += power
        value = tokens / curve.cost(pending + depth)
        if value > best_value:
            best, best_value = depth, value
    return best
