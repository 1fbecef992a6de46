"""Who asks what and when: plans of requests that every side of a benchmark gets alike.

A plan is decided before anything runs, from a seed alone, so two runs of it ask the same things at
the same times, as far as the answers let them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.measure import EncodedPrompt


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes
    ----------
    tokens
        Length of the answer, exactly: end tokens are passed over.
    """

    prompt: EncodedPrompt
    tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Chain:
    """What one user asks: each request as soon as the one before has been answered.

    Attributes
    ----------
    at
        Seconds from the start to the first request.
    after
        The start is that of the plan, or, where this is not 0, the arrival of so many tokens of the
        answer to the plan's very first request, which must have as many.
    """

    at: float
    asks: tuple[Ask, ...]
    after: int = 0


Plan = tuple[Chain, ...]


def closed(asks: Sequence[Ask], clients: int) -> Plan:
    """Clients that all start at once and always have one request under way, until none is left."""
    return tuple(Chain(0.0, tuple(asks[first::clients])) for first in range(clients))


def poisson(asks: Sequence[Ask], rate: float, seed: int) -> Plan:
    """Requests that come by themselves, `rate` a second in the long run.

    The gaps are exponentially distributed, drawn from the seed; another rate only stretches them.
    """
    draw = random.Random(seed)
    plan, at = [], 0.0
    for ask in asks:
        at -= math.log(1.0 - draw.random()) / rate
        plan.append(Chain(at, (ask,)))
    return tuple(plan)


def burst(asks: Sequence[Ask], size: int, rate: float) -> Plan:
    """Requests that come `size` at a time, `rate` a second in the long run."""
    return tuple(Chain(n // size * size / rate, (ask,)) for n, ask in enumerate(asks))


def lengths(count: int, most: int, seed: int) -> list[int]:
    """Answers' lengths from half of `most` to `most`, at least 2, drawn from the seed.

    Answers of one length would all begin and end together, as users' never do.
    """
    draw = random.Random(seed)
    low = max(2, most // 2)
    return [low + int(draw.random() * (most - low + 1)) for _ in range(count)]


def shortened(plan: Plan, tokens: int) -> Plan:
    """The first request of every chain, all at once, with answers of at most `tokens`."""
    firsts = (chain.asks[0] for chain in plan)
    return tuple(Chain(0.0, (replace(ask, tokens=min(ask.tokens, tokens)),)) for ask in firsts)
