"""What the policies promise, checked against what an executor stand-in knows of its requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Policy, Prefill, Quantum, Wait

MEMORY = 400
"""Tokens that the caches take."""

MOST_ACCEPTED = 5
PREFILL_S = 0.002
CYCLE_S = 0.02
DEAREST_QUANTUM = 20.0
"""Decoded tokens: a chunk of 40 costs at most 40 * 0.002 s, a token at least 0.02 s / 5."""

COHORTS = ("mtp_batch", "mtp_cohort_experimental")
BATCHED = ("ar_batch", *COHORTS)


def fits(tokens: list[int]) -> bool:
    return sum(tokens) <= MEMORY


@dataclass
class Sim:
    """A request as the executor knows it."""

    arrival: Arrival
    policy: Policy
    came: float
    left: int
    output: int
    hit: int
    decoded: int = 0
    started: bool = False
    begun: bool = False
    """Whether a part of its prompt was fed since it came, or since it was rewound."""
    passed_over: int = 0
    """Quanta of others since its last one."""
    turns: int | None = None
    """How many cohorts may be sealed until it is in one."""

    @property
    def kind(self) -> tuple[str, str | None]:
        return self.arrival.key, self.arrival.cohort


@dataclass
class Books:
    """What the executor notes about one policy, to compare with its snapshot."""

    ended: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    lanes: Counter[int] = field(default_factory=Counter)
    cohorts: dict[str, set[str]] = field(default_factory=dict)
    gone: Counter[str] = field(default_factory=Counter)
    """By closed cohort: members that have ended."""
    sealed_at: float = 0.0
    last: Quantum | None = None
    quiet: bool = False
    """Whether nothing happened since the last quantum."""
    most_weight: float = 0.0


class Promises:
    """Every assertion here is a promise of the policies.

    Attributes
    ----------
    open
        The requests that have not ended, in the order in which they came.
    books
        By the id of a policy: what was noted about it.
    cohort_of
        By closed cohort: the name under which it ran.
    torn
        Closed cohorts that a switch has taken apart, or that did not come at once.
    waited
        Whether the time of a `Wait` has come, and nothing happened since.
    """

    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        self.options, self.machine = options, machine
        self.now = 100.0
        self.open: dict[str, Sim] = {}
        self.books: dict[int, Books] = {}
        self.cohort_of: dict[str, str] = {}
        self.torn: set[str] = set()
        self.waited = False
        self.dearest = DEAREST_QUANTUM

    def _check_members(self, old: Policy, arrival: Arrival, back: list[str]) -> None:
        """A closed cohort that is handed back expects only who is left of it."""
        assert arrival.cohort is not None
        known = self.open[arrival.request_id].arrival
        ended = self.books[id(old)].gone[arrival.cohort]
        mine = [s.arrival for s in self.open.values() if s.policy is old]
        kept = [a for a in mine if a.cohort == arrival.cohort and a.request_id not in back]
        assert old.name == "hyper" or arrival.members == known.members - ended - len(kept)

    def _check_wait(self, policy: Policy, quantum: Wait, mine: list[Sim]) -> None:
        assert policy.name in COHORTS, "only cohorts wait"
        assert mine, "somebody is waited for"
        assert quantum.until > self.now
        assert not any(sim.started for sim in mine), "nobody waits while somebody could run"
        assert quantum.until == min(self._ready(kind) for kind in self._kinds(mine)), "as promised"

    def _kinds(self, mine: list[Sim]) -> list[list[Sim]]:
        kinds: dict[tuple[str, str | None], list[Sim]] = {}
        for sim in mine:
            kinds.setdefault(sim.kind, []).append(sim)
        return list(kinds.values())

    def _ready(self, kind: list[Sim]) -> float:
        """When a cohort of these may begin, all of them waiting."""
        first = kind[0]
        tokens = [sim.arrival.tokens for sim in kind]
        name = first.arrival.cohort
        if name is None:
            full = len(kind) >= self.options.width or (
                len(kind) > 1 and not self.machine.fits(tokens)
            )
            return first.came if full else first.came + self.options.wait_ms / 1000
        complete = len(kind) == first.arrival.members - self.books[id(first.policy)].gone[name]
        return first.came if complete else first.came + self.options.max_wait_ms / 1000

    def _check_cohorts(
        self, policy: Policy, before: dict[str, object], after: dict[str, object], mine: list[Sim]
    ) -> None:
        """The kinds take their turns: in the order of their oldest jobs, and refills in time."""
        if policy.name not in COHORTS:
            return
        waiting = after["waiting"]
        assert isinstance(waiting, dict)
        if after["cohorts"] != before["cohorts"]:
            assert after["cohorts"] == before["cohorts"] + 1  # type: ignore[operator]
            assert not any(sim.started for sim in mine), "one cohort at a time"
            first = str(after["cohort"]).rsplit("-", 1)[1]
            ready = [k[0] for k in self._kinds(mine) if self._ready(k) <= self.now]
            assert first == ready[0].arrival.request_id, "the oldest that is ready goes first"
            self._check_turns(self.open[first].kind, mine)
        if after["refills"] != before["refills"]:
            assert not self.options.sealed
            due = self.now - self.options.max_wait_ms / 1000
            others = [s for s in mine if not s.started and s.arrival.key != after["cohort_key"]]
            assert not any(s.came <= due for s in others), "no refill while others are due"

    def _check_turns(self, sealed: tuple[str, str | None], mine: list[Sim]) -> None:
        """A job with n jobs before it is in one of the n + 1 cohorts after its wait."""
        for place, sim in enumerate(mine):
            wait = self.options.wait_ms if sim.arrival.cohort is None else self.options.max_wait_ms
            if sim.came + wait / 1000 <= self.now:
                sim.turns = (place + 1 if sim.turns is None else sim.turns) - 1
                assert sim.turns > 0 or sim.kind == sealed, "its turn never comes"

    def _check_joined(self, books: Books, mine: list[Sim], starting: list[Sim]) -> None:
        """Who came after a cohort was sealed may join it unless it is closed or others are due."""
        if not any(sim.started for sim in mine):
            books.sealed_at = self.now
        for sim in starting:
            if sim.came > books.sealed_at and sim.arrival.cohort is None:
                assert not self.options.sealed, "nobody joins a sealed cohort"
                due = sim.came - self.options.max_wait_ms / 1000
                others = [s for s in mine if s.kind != sim.kind and s.came <= due]
                assert not others, "no refill while others are due"

    def _check_quantum(
        self, policy: Policy, books: Books, quantum: Prefill | Decode, mine: list[Sim]
    ) -> None:
        ids = quantum.request_ids
        assert len(set(ids)) == len(ids) > 0
        assert set(ids) <= {sim.arrival.request_id for sim in mine}, "only open requests run"
        sims = [self.open[name] for name in ids]
        starting = [sim for sim in sims if not sim.started]
        self._check_order(policy, mine, starting)
        if policy.name in COHORTS:
            self._check_joined(books, mine, starting)
        if isinstance(quantum, Prefill):
            assert len(quantum.tokens) == len(ids)
            for sim, tokens in zip(sims, quantum.tokens, strict=True):
                assert 1 <= tokens <= min(sim.left, self.machine.chunk)
                sim.begun = True
        else:
            assert all(sim.left == 0 for sim in sims), "who decodes has its prompt in the caches"
        for sim in sims:
            sim.started = True
        under_way = [sim for sim in mine if sim.started]
        width = {"serial": 1}.get(policy.name, self.options.width)
        assert len(under_way) <= width
        tokens_held = [sim.arrival.tokens for sim in under_way]
        assert len(under_way) == 1 or self.machine.fits(tokens_held), "the caches have room"
        if policy.name in BATCHED:
            self._check_batch(policy, books, quantum, sims, under_way)
        else:
            assert len(ids) == 1, "requests are never mixed"
        if policy.name == "cooperative":
            self._check_fairness(books, sims[0], mine)
        self._check_again(policy, books, quantum)

    def _check_order(self, policy: Policy, mine: list[Sim], starting: list[Sim]) -> None:
        """First in, first out: as many as there is room for may be on their way to a start."""
        for sim in starting:
            place = mine.index(sim)
            earlier = [s for s in mine[:place] if not s.started]
            if policy.name in COHORTS:
                earlier = [s for s in earlier if s.kind == sim.kind]
            if policy.name == "serial":
                assert mine[0] is sim, "first in, first out"
            if policy.name in BATCHED and sim.left:
                fed = [s for s in earlier if s.left and s not in starting]
                assert not fed, "prompts begin in order"
            started = [s for s in mine if s.started]
            room = self.options.width
            assert len({id(s) for s in (*earlier, *started, sim)}) <= room, "nobody is overtaken"

    def _check_batch(
        self,
        policy: Policy,
        books: Books,
        quantum: Prefill | Decode,
        sims: list[Sim],
        under_way: list[Sim],
    ) -> None:
        prompts = [sim for sim in under_way if sim.begun and sim.left]
        assert len(prompts) <= self.options.prefill_cap, "prompts that prefill are capped"
        decoding = [sim for sim in under_way if sim.left == 0]
        if isinstance(quantum, Prefill):
            taken_turns = not (books.quiet and isinstance(books.last, Prefill) and decoding)
            assert taken_turns, "running rows decode between two chunks"
        else:
            assert set(quantum.request_ids) >= {s.arrival.request_id for s in decoding}, (
                "all rows decode"
            )
            lanes = [n for n in (1, 2, 4, 8, 16, 32) if n < self.options.width]
            lanes.append(self.options.width)
            assert quantum.lane == next(n for n in lanes if n >= len(sims)), "the narrowest lane"
        if policy.name not in COHORTS:
            return
        assert len({sim.kind for sim in under_way}) == 1, "one key, and closed cohorts closed"
        if isinstance(quantum, Decode):
            assert quantum.cohort is not None
            newest = next(reversed(books.cohorts), quantum.cohort)
            assert newest == quantum.cohort or quantum.cohort not in books.cohorts, "unique"
            members = books.cohorts.setdefault(quantum.cohort, set())
            members.update(quantum.request_ids)
            if self.options.sealed and sims[0].arrival.cohort is None:
                assert len(members) <= self.options.width, "nobody joins a sealed cohort"
            name = sims[0].arrival.cohort
            if name is not None and name not in self.torn:
                assert self.cohort_of.setdefault(name, quantum.cohort) == quantum.cohort

    def _check_fairness(self, books: Books, served: Sim, mine: list[Sim]) -> None:
        """The bound that the policy states, over quanta between two of the same request."""
        n = self.options.width
        under_way: list[Sim] = []
        held: list[int] = []
        for sim in mine:
            held.append(sim.arrival.tokens)
            if under_way and (len(under_way) == n or not self.machine.fits(held)):
                break
            under_way.append(sim)
        assert served in under_way, "nobody is overtaken"
        assert not any(sim.started for sim in mine if sim not in under_way)
        weights = sum(sim.arrival.weight for sim in under_way)
        books.most_weight = max(books.most_weight, weights)
        for sim in under_way:
            sim.passed_over = 0 if sim is served else sim.passed_over + 1
            share = books.most_weight / sim.arrival.weight
            assert sim.passed_over <= 4 * n * (self.dearest * (2 * share + n) + 1), "starved"

    def _check_again(self, policy: Policy, books: Books, quantum: Prefill | Decode) -> None:
        last = books.last
        if books.quiet and isinstance(last, Decode):
            same = isinstance(quantum, Decode) and quantum.request_ids == last.request_ids
            assert same or not last.again, "the same rows decode next, it was said"
            assert not same or last.again or policy.name == "cooperative", "others do, it was said"
        books.last, books.quiet = quantum, True

    def _check_snapshot(self, policy: Policy) -> None:
        if policy.name == "hyper":
            return
        books, shown = self.books[id(policy)], policy.snapshot()
        mine = sum(sim.policy is policy for sim in self.open.values())
        # Requests that were handed back were never its own.
        assert (shown["open_requests"], shown["ended_requests"]) == (mine, books.ended)
        if policy.name not in BATCHED:
            return
        cycles = shown.get("target_verify_cycles", shown.get("target_steps"))
        assert cycles == books.widths.total()
        assert shown["batch_histogram"] == books.widths
        assert shown["fixed_width_histogram"] == books.lanes
