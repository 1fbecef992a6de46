"""Cycle by cycle: what each one of a request gave, and so how every token came."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

CYCLES_KEPT = 4096
FORGOTTEN_AT_ONCE = CYCLES_KEPT // 4
NUMBERS = 5
"""Of each cycle: drafted, accepted, tokens, the drafter's number, rows."""

Kind = Literal["accepted", "correction", "bonus", "plain", "unknown"]


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle did for one request.

    Attributes
    ----------
    at
        When it was committed, in seconds of `time.perf_counter()`.
    drafted, accepted
        Drafts verified, and how many of them were right and came before the end.
    tokens
        Tokens decoded, the end token included.
    drafter
        Who drafted: head, lookup, pool, grammar, or the name of another; None where nobody did.
    rows
        Requests that shared its forward; twins of its own are not counted.
    """

    at: float
    drafted: int
    accepted: int
    tokens: int
    drafter: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class Origin:
    """How a token came.

    Attributes
    ----------
    kind
        `accepted`: it was drafted. `correction`: it stands in place of a wrong draft. `bonus`: it
        came after drafts that were all right. `plain`: nothing was drafted. `unknown`: its cycle
        is not remembered.
    depth
        Which draft of its cycle it was, from 1; 0 if it was none.
    cycle
        The number of its cycle, from 0; -1 where that is not remembered.
    """

    kind: Kind
    depth: int
    cycle: int


@dataclass(frozen=True, slots=True)
class Step:
    """Neighbouring cycles as one.

    Attributes
    ----------
    start, end
        When the cycle before it was committed, and its last one.
    cycles, drafted, accepted, tokens
        Sums over its cycles.
    """

    start: float
    end: float
    cycles: int
    drafted: int
    accepted: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is known of one request's cycles at one moment.

    Attributes
    ----------
    cycles
        The last ones.
    token_ids
        What they gave, without an end token.
    dropped, dropped_tokens
        How many cycles before them are forgotten, and how many tokens without an end token those
        had.
    """

    cycles: list[Cycle]
    token_ids: list[int]
    dropped: int
    dropped_tokens: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """Arrays that are only added to, behind what was forgotten before they were made."""

    times: array[float] = field(default_factory=lambda: array("d"))
    numbers: array[int] = field(default_factory=lambda: array("H"))
    ids: array[int] = field(default_factory=lambda: array("i"))
    dropped: int = 0
    dropped_tokens: int = 0


class Cycles:
    """The last cycles of one request, as arrays of numbers: 18 bytes each, and 4 a token.

    One thread records; any may read. What a reader copies is a state that there was: numbers are
    added before the times that count them, and what is forgotten is left behind in the old arrays.
    """

    __slots__ = ("_drafters", "_kept")

    def __init__(self) -> None:
        self._drafters: list[str] = []
        self._kept = _Kept()

    def record(self, cycle: Cycle, ids: Sequence[int]) -> None:
        """Add a cycle and the ids that it gave, without an end token."""
        if len(self._kept.times) >= CYCLES_KEPT:
            self._forget(FORGOTTEN_AT_ONCE)
        kept = self._kept
        kept.ids.extend(ids)
        kept.numbers.extend(
            (cycle.drafted, cycle.accepted, cycle.tokens, self._number(cycle.drafter), cycle.rows)
        )
        kept.times.append(cycle.at)

    def forget(self) -> None:
        """Give the memory back; later cycles are recorded as ever."""
        self._forget(len(self))

    def __len__(self) -> int:
        return len(self._kept.times)

    def __iter__(self) -> Iterator[Cycle]:
        return iter(self.remembered().cycles)

    def __repr__(self) -> str:
        return f"<{len(self)} cycles, {self._kept.dropped} forgotten>"

    @property
    def recorded(self) -> int:
        """How many cycles there were, forgotten ones too."""
        kept = self._kept
        return kept.dropped + len(kept.times)

    @property
    def token_ids(self) -> list[int]:
        """The ids of the remembered cycles, without an end token."""
        return self.remembered().token_ids

    def remembered(self) -> Remembered:
        """All of it, as it is now."""
        kept = self._kept
        times = kept.times[:]
        numbers = kept.numbers[: len(times) * NUMBERS].tolist()
        drafters = [None, *self._drafters]
        cycles = []
        for i, at in enumerate(times):
            drafted, accepted, tokens, drafter, rows = numbers[i * NUMBERS : (i + 1) * NUMBERS]
            cycles.append(Cycle(at, drafted, accepted, tokens, drafters[drafter], rows))
        ids = kept.ids[: sum(numbers[2::NUMBERS])].tolist()
        return Remembered(cycles, ids, kept.dropped, kept.dropped_tokens)

    def steps(self, most: int, start: float) -> list[Step]:
        """The remembered cycles in at most `most` steps of equally many, a power of two.

        Parameters
        ----------
        start
            When the first cycle began.
        """
        kept = self._kept
        times = kept.times[:]
        numbers = kept.numbers[: len(times) * NUMBERS]
        each = 1
        while len(times) > each * most:
            each *= 2
        found = []
        for i in range(0, len(times), each):
            part = numbers[i * NUMBERS : (i + each) * NUMBERS]
            last = min(i + each, len(times)) - 1
            sums = [sum(part[n::NUMBERS]) for n in range(3)]
            found.append(Step(start, times[last], last + 1 - i, *sums))
            start = times[last]
        return found

    def _forget(self, count: int) -> None:
        kept = self._kept
        tokens = sum(kept.numbers[2 : count * NUMBERS : NUMBERS])
        self._kept = _Kept(
            kept.times[count:],
            kept.numbers[count * NUMBERS :],
            kept.ids[tokens:],
            kept.dropped + count,
            # An end token is counted, but has no id.
            kept.dropped_tokens + min(tokens, len(kept.ids)),
        )

    def _number(self, drafter: str | None) -> int:
        if drafter is None:
            return 0
        if drafter not in self._drafters:
            self._drafters.append(drafter)
        return self._drafters.index(drafter) + 1


def origins(cycles: Cycles | Remembered | Iterable[Cycle]) -> list[Origin]:
    """How each token of some cycles came, the end token included.

    Tokens of cycles that a request has forgotten come first, as unknown.
    """
    known = cycles.remembered() if isinstance(cycles, Cycles) else cycles
    if not isinstance(known, Remembered):
        known = Remembered(list(known), [], 0, 0)
    found = [Origin("unknown", 0, -1)] * known.dropped_tokens
    for n, cycle in enumerate(known.cycles, known.dropped):
        found += [Origin("accepted", depth, n) for depth in range(1, cycle.accepted + 1)]
        found += [Origin(last_kind(cycle), 0, n)] * (cycle.tokens - cycle.accepted)
    return found


def last_kind(cycle: Cycle) -> Kind:
    """How the token that a cycle gave after its accepted drafts came."""
    if cycle.accepted < cycle.drafted:
        return "correction"
    return "bonus" if cycle.drafted else "plain"
