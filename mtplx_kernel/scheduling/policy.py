"""What a scheduler policy is: it sees requests come and go and says which quantum runs next.

Policies are plain Python with no model behind them, deterministic given a clock, so they can be
tested with thousands of histories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

PREFILL_CHUNK = {"cpu": 128, "gpu": 1024}
"""Prompt tokens fed in one quantum, by device: a cancel during prefill waits for the quantum to
end, so it is no more than prefilling at full speed needs."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a policy knows of a request when it comes.

    Attributes
    ----------
    prefill
        Prompt tokens to feed before its first decode cycle.
    tokens
        Most ids that its row comes to hold, prompt and answer together.
    key
        What rows of one cohort must have in common.
    weight
        Its share of the service where requests take turns; above 0.
    cohort
        Requests that were submitted as one closed cohort have its name; None for all others.
    members
        How many requests that cohort has.
    alone
        Whether it waits until every such request before it has ended; where the mode forms cohorts
        it has one of its own. The modes that run one request at a time need no telling.
    """

    request_id: str
    prefill: int
    tokens: int = 0
    key: str = ""
    weight: float = 1.0
    cohort: str | None = None
    members: int = 1
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Prefill:
    """Feed at most `tokens[i]` prompt tokens of `request_ids[i]`, in one forward.

    A request's first prefill admits it: it takes a slot then, and may find a part of its prompt in
    the prefix cache, so that less is left than the policy thought.
    """

    request_ids: tuple[str, ...]
    tokens: tuple[int, ...]
    cohort: str | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """Run one decode cycle over some requests; the first admits a request without a prefill.

    Attributes
    ----------
    lane
        The narrowest installed width that the rows fit in.
    cohort
        The name of the rows' cohort, in the modes that form them.
    again
        Whether the same rows will decode next, as far as can be told.
    """

    request_ids: tuple[str, ...]
    lane: int = 1
    cohort: str | None = None
    again: bool = True


@dataclass(frozen=True, slots=True)
class Serve:
    """Run one request alone, from its start to its end.

    Attributes
    ----------
    cohort
        The name of the closed cohort that it is alone in.
    """

    request_id: str
    cohort: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Run nothing before this time, unless a request comes or leaves."""

    until: float


Quantum = Prefill | Decode | Serve


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a quantum.

    Attributes
    ----------
    seconds
        How long it took.
    prefill_left
        By request: the prompt tokens still to feed.
    tokens
        By request: the tokens decoded.
    fed
        By request: the prompt tokens that this quantum fed. They may be fewer than it asked for,
        as the prefix cache may hold a part of a prompt; requests that ended in it may be missing.
    """

    seconds: float
    prefill_left: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    fed: Mapping[str, int] = field(default_factory=dict)


def _always(tokens: Sequence[int]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Machine:
    """What a policy may know of the model and the machine.

    Attributes
    ----------
    chunk
        Most prompt tokens of one row in a prefill quantum.
    fits
        Whether rows of so many tokens, in one set of slots, have room in the memory.
    throughput
        By lane: rows a second of a plain decode with that many rows, where it was measured.
    widest
        Most rows that the model's caches take.
    """

    chunk: int = PREFILL_CHUNK["cpu"]
    fits: Callable[[Sequence[int]], bool] = _always
    throughput: Mapping[int, float] = field(default_factory=dict)
    widest: int = 64


class Policy(Protocol):
    """One scheduler mode. Times are seconds of one monotonic clock.

    Attributes
    ----------
    name
        The mode's.
    rule
        How it shares the model, in a word or two.
    drafts
        Whether its rows may draft.
    """

    name: str
    rule: str
    drafts: bool

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Take a request into the queue."""
        ...

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request: it ended, however it ended. Unknown ids are ignored."""
        ...

    def rewind(self, request_id: str, prefill: int) -> None:
        """An admitted request lost its caches through no fault of its own: it must prefill anew."""
        ...

    def next(self, now: float) -> Quantum | Wait | None:
        """What to run now; None if there is nothing. The caller runs it before asking again."""
        ...

    def ran(self, quantum: Quantum, ran: Ran, now: float) -> None:
        """Learn what came of the last quantum. Requests that ended in it have left before."""
        ...

    def withdraw(self) -> list[Arrival]:
        """Admit nobody from now on, and hand back who waits, in order; what runs goes on."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Plain data for the status."""
        ...
