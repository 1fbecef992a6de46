"""How many tokens to draft: from what a verify costs, and how often drafts were right lately."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

DECAY = 0.97
PROBE_EVERY = 16
"""Tokens without a verified draft after which one is tried all the same."""
PRIOR_WEIGHT = 8.0
"""Verifies of its own that move a request as much as what is known of others: fewer, and a poor
start would end drafting for a whole answer."""
COMMON_WEIGHT = 32.0
"""Verifies that move what is known of all requests: rows of a batch have poor starts at once."""


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
        """What a block costs, in units of a block of one."""
        return self.at(tokens) / self.seconds[0]

    def at(self, tokens: int) -> float:
        """Seconds of a block: linear between the measured lengths."""
        return _linear(self.tokens, self.seconds, tokens)


FLAT = CostCurve((1, 2), (1.0, 1.0))
"""Every block costs the same: drafts are free."""


@dataclass(frozen=True, slots=True)
class CostSurface:
    """Seconds of one forward by its rows and the tokens of its widest row, as measured.

    Attributes
    ----------
    one
        Of one row.
    lanes
        Of more rows, by their number, each with the logits of every position.
    position
        What the logits of one position more take.
    """

    one: CostCurve = FLAT
    lanes: Mapping[int, CostCurve] = field(default_factory=dict)
    position: float = 0.0

    def prices(self, rows: int, widest: int) -> list[float]:
        """What forwards with one row's logits each cost, in plain decodes of one row.

        A wider block is never taken to cost less than a narrower one.

        Returns
        -------
        list of float
            By the tokens of the widest row, from 1 to `widest`.
        """
        spared = self.position * rows
        seconds = [self._at(rows, n) - spared * (n - 1) for n in range(1, widest + 1)]
        return [s / self.one.seconds[0] for s in accumulate(seconds, max)]

    @property
    def draft(self) -> float:
        """What the logits of one draft cost, in plain decodes of one row."""
        return self.position / self.one.seconds[0]

    def _at(self, rows: int, tokens: int) -> float:
        """Seconds, linear between the measured numbers of rows.

        Without any, rows are taken to cost as many tokens more of one row.
        """
        if rows == 1 or not self.lanes:
            return self.one.at(rows * tokens)
        known = [1, *sorted(self.lanes)]
        seconds = [self.one.at(tokens), *(self.lanes[n].at(tokens) for n in known[1:])]
        return _linear(known, list(accumulate(seconds, max)), rows)


@dataclass(frozen=True, slots=True)
class HeadCost:
    """What a head's forwards cost, in plain decodes of the target.

    Attributes
    ----------
    first
        The pass over a cycle's new pairs, and its draft.
    step
        Each further draft.
    """

    first: float = 0.0
    step: float = 0.0

    def of(self, depth: int) -> float:
        """What `depth` drafts cost."""
        return self.first + (depth - 1) * self.step if depth else 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts of a cycle cost.

    Attributes
    ----------
    verify
        The target's forwards.
    head
        The head's by the number of rows, from 1 on; empty without a head.
    """

    verify: CostSurface = CostSurface()
    head: Mapping[int, HeadCost] = field(default_factory=dict)

    def drafting(self, rows: int, depth: int) -> float:
        """What it costs to draft for so many rows, `depth` for the deepest."""
        if not self.head:
            return 0.0
        known = sorted(self.head)
        costs = [self.head[n].of(depth) for n in known]
        return costs[0] if len(known) == 1 else _linear(known, list(accumulate(costs, max)), rows)


@dataclass(slots=True)
class Rate:
    """A decayed share of drafts that were right, given that those before them were.

    Attributes
    ----------
    decay
        Weight of the past after each observation.
    weight
        Verifies that count as much as what was believed before.
    """

    decay: float = DECAY
    weight: float = PRIOR_WEIGHT
    hits: float = 0.0
    tries: float = 0.0

    def observe(self, drafted: int, accepted: int) -> None:
        """Count one verify: its right drafts, and the first wrong one if there was one."""
        self.hits = self.decay * self.hits + accepted
        self.tries = self.decay * self.tries + accepted + (accepted < drafted)

    def given(self, prior: float) -> float:
        """The share, shrunk to `prior` while there is little to go by."""
        return (self.hits + self.weight * prior) / (self.tries + self.weight)


@dataclass(slots=True)
class Ladder:
    """A rate for each depth: a head that feeds on itself is right less often the deeper it goes.

    Attributes
    ----------
    decay, weight
        Of each rate.
    """

    decay: float = DECAY
    weight: float = PRIOR_WEIGHT
    rates: list[Rate] = field(default_factory=list)

    def observe(self, drafted: int, accepted: int) -> None:
        """Count one verify: a hit for each right draft, a miss for the first wrong one."""
        tried = min(drafted, accepted + 1)
        while len(self.rates) < tried:
            self.rates.append(Rate(self.decay, self.weight))
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


def _linear(known: Sequence[int], values: Sequence[float], wanted: int) -> float:
    """Linear between known points, and beyond them as between the last two."""
    right = min(max(bisect_left(known, wanted), 1), len(known) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (known[right] - known[left])
    return values[left] + slope * (wanted - known[left])
