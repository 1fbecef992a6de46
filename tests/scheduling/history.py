"""Histories of requests: an executor stand-in runs policies as the engine does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import (
    Arrival,
    Decode,
    Machine,
    Policy,
    Prefill,
    Quantum,
    Ran,
    Serve,
    Wait,
)
from tests.scheduling.promises import CYCLE_S, MOST_ACCEPTED, PREFILL_S, Books, Promises, Sim, fits

MACHINE = Machine(chunk=40, fits=fits, widest=64)


class Play(Promises):
    """Runs policies: requests come and end, forwards run and fail, modes are switched."""

    def __init__(
        self,
        make: Callable[[str], Policy],
        mode: str,
        options: SchedulerOptions,
        machine: Machine,
        random: Random,
    ) -> None:
        super().__init__(options, machine)
        self.make, self.random = make, random
        self.line = [make(mode)]
        self.books[id(self.line[0])] = Books()
        self.arrived = 0
        self.ends: Counter[str] = Counter()
        self.log: list[Quantum | Wait] = []
        self.fails: bool | None = None
        """Whether the next forward fails: with the caches whole, or not."""
        self.stumbles = 0.0
        """How likely a row is to fail in a forward."""

    def arrive(
        self,
        prefill: int,
        output: int,
        key: str = "k",
        weight: float = 1.0,
        hit: int = 0,
        cohort: str | None = None,
        members: int = 1,
    ) -> str:
        name = f"r{self.arrived}"
        self.arrived += 1
        arrival = Arrival(name, prefill, prefill + output + 1, key, weight, cohort, members)
        policy = self.line[-1]
        self.open[name] = Sim(arrival, policy, self.now, prefill, output, min(hit, prefill))
        policy.arrive(arrival, self.now)
        self._disturb()
        return name

    def end(self, name: str) -> None:
        sim = self.open.pop(name)
        self.ends[name] += 1
        if sim.arrival.cohort is not None:
            self.books[id(sim.policy)].gone[sim.arrival.cohort] += 1
        sim.policy.leave(name, self.now)
        sim.policy.leave(name, self.now)  # unknown by now, so ignored
        self.books[id(sim.policy)].ended += 1
        self._disturb()
        self._drop_finished()

    def switch(self, mode: str) -> None:
        old, new = self.line[-1], self.make(mode)
        back = old.withdraw()
        names = [arrival.request_id for arrival in back]
        waiting = [name for name, sim in self.open.items() if sim.policy is old]
        assert names == [name for name in waiting if name in names], "handed back in order"
        assert not any(self.open[name].started for name in names), "who runs stays"
        kept = [name for name in waiting if name not in names and not self.open[name].started]
        assert len(kept) <= (0 if old.name in ("serial", "hyper") else self.options.width)
        assert old.withdraw() == []
        for arrival in back:
            known = self.open[arrival.request_id]
            if arrival.cohort is not None:
                self._check_members(old, arrival, names)
                self.torn.add(arrival.cohort)
            known.arrival, known.policy, known.came = arrival, new, self.now
            new.arrive(arrival, self.now)
        self.line.append(new)
        self.books[id(new)] = Books()
        self._disturb()
        self._drop_finished()

    def run(self) -> bool:
        """Ask for a quantum and run it; False if there was none."""
        policy = self.line[0]
        books = self.books[id(policy)]
        before = policy.snapshot()
        quantum = policy.next(self.now)
        self._check_snapshot(policy)
        mine = [sim for sim in self.open.values() if sim.policy is policy]
        if quantum is None:
            assert not mine, f"{policy.name} runs nothing, but {len(mine)} requests are open"
            return False
        self.log.append(quantum)
        if isinstance(quantum, Wait):
            self._check_wait(policy, quantum, mine)
            assert not self.waited, "it waits beyond its promise"
            if self.random.random() < 0.3:
                self.now += (quantum.until - self.now) / 2
            else:
                self.now, self.waited = quantum.until, True
            return True
        self.waited = False
        self._check_cohorts(policy, before, policy.snapshot(), mine)
        if isinstance(quantum, Serve):
            self._serve(policy, books, quantum, mine)
            return True
        self._check_quantum(policy, books, quantum, mine)
        self._execute(policy, books, quantum)
        return True

    def _serve(self, policy: Policy, books: Books, quantum: Serve, mine: list[Sim]) -> None:
        name = quantum.request_id
        if policy.name == "hyper":
            assert name == mine[0].arrival.request_id
            self.end(name)
            return
        sim = self.open[name]
        assert self.options.sealed or sim.arrival.cohort is not None, "others may join it"
        part: Prefill | Decode
        while name in self.open:
            if sim.left:
                part = Prefill((name,), (min(sim.left, self.machine.chunk),), quantum.cohort)
            else:
                part = Decode((name,), cohort=quantum.cohort)
            self._check_quantum(policy, books, part, [s for s in mine if s is sim])
            self._execute(policy, books, part)

    def _execute(self, policy: Policy, books: Books, quantum: Prefill | Decode) -> None:
        sims = [self.open[name] for name in quantum.request_ids]
        tokens = dict.fromkeys(quantum.request_ids, 0)
        fed: dict[str, int] = {}
        if isinstance(quantum, Prefill):
            seconds = PREFILL_S * len(sims) * max(quantum.tokens)
        else:
            seconds = CYCLE_S
            books.widths[len(sims)] += 1
            books.lanes[quantum.lane] += 1
        self.now += seconds
        if self.fails is not None:
            whole, self.fails = self.fails, None
            self._fail(quantum, whole)
        elif isinstance(quantum, Prefill):
            for sim, asked in zip(sims, quantum.tokens, strict=True):
                sim.left -= sim.hit
                sim.hit = 0
                fed[sim.arrival.request_id] = min(asked, sim.left)
                sim.left -= min(asked, sim.left)
        else:
            for sim in sims:
                most = MOST_ACCEPTED if policy.drafts else 1
                count = min(self.random.randint(1, most), sim.output)
                tokens[sim.arrival.request_id] = count
                sim.output -= count
                sim.decoded += count
                if sim.output == 0:
                    self.end(sim.arrival.request_id)
        for name in quantum.request_ids:
            if name in self.open and self.random.random() < self.stumbles:
                self.end(name)
        left = {n: self.open[n].left for n in quantum.request_ids if n in self.open}
        if policy in self.line:
            decoded = tokens if isinstance(quantum, Decode) else {}
            fed = {n: count for n, count in fed.items() if n in self.open}
            policy.ran(quantum, Ran(seconds, left, decoded, fed), self.now)
            self._check_snapshot(policy)

    def _fail(self, quantum: Prefill | Decode, whole: bool) -> None:
        for name in quantum.request_ids:
            self.end(name)
        for name, sim in self.open.items():
            if sim.started and not whole:
                sim.left = sim.arrival.prefill + sim.decoded
                sim.hit, sim.begun = 0, False
                sim.policy.rewind(name, sim.left)
        self._disturb()

    def _disturb(self) -> None:
        self.waited = False
        for books in self.books.values():
            books.quiet = False

    def _drop_finished(self) -> None:
        busy = {id(sim.policy) for sim in self.open.values()}
        self.line = [p for p in self.line[:-1] if id(p) in busy] + self.line[-1:]

    def drain(self) -> None:
        """Let everything end, in no more quanta than there is work."""
        self.fails = None
        work = sum(2 + sim.arrival.prefill + sim.decoded + sim.output for sim in self.open.values())
        for _ in range(3 * work + 2):
            if not self.open:
                break
            self.run()
        assert not self.open, "everything ends"
        assert set(self.ends.values()) <= {1}, "everything ends once"
        assert len(self.ends) == self.arrived
        assert self.line[0].next(self.now) is None


def play(
    seed: int,
    make: Callable[[str], Policy],
    modes: tuple[str, ...],
    options: SchedulerOptions,
    machine: Machine = MACHINE,
) -> Play:
    """A random history, from its first arrival until everything has ended."""
    random = Random(seed)
    history = Play(make, modes[0], options, machine, random)
    history.stumbles = random.choice((0.0, 0.0, 0.02))
    keys = ("a", "a", "a", "b", "c")[: random.choice((3, 5))]
    busy = random.choice((0.15, 0.5))
    late: list[str] = []
    for _ in range(random.randint(5, 70)):
        dice = random.random()
        if dice < busy:
            history.arrive(
                random.choice((0, 1, 5, 30, 60, 60)) if random.random() < 0.98 else 500,
                random.choice((1, 2, 5, 20, 40)),
                random.choice(keys),
                random.choice((0.25, 1.0, 1.0, 4.0)),
                random.choice((0, 0, 0, 3, 60)),
            )
        elif dice < busy + 0.03:
            members = random.randint(1, options.width + 2)
            name = f"c{history.arrived}"
            here = random.choice((members, members, random.randint(1, members)))
            if here < members:
                history.torn.add(name)
                late.append(name)
            for _ in range(here):
                history.arrive(random.choice((0, 8, 50)), 8, "a", cohort=name, members=members)
        elif dice < busy + 0.04 and late:
            name = late.pop()
            first = next((s for s in history.open.values() if s.arrival.cohort == name), None)
            if first is not None and first.arrival.members > 1 and len(modes) == 1:
                history.arrive(0, 3, "a", cohort=name, members=first.arrival.members)
        elif dice < busy + 0.08 and history.open:
            history.end(random.choice(list(history.open)))
        elif dice < busy + 0.1:
            history.fails = random.random() < 0.5
        elif dice < busy + 0.12 and len(modes) > 1:
            history.switch(random.choice(modes))
        elif dice < busy + 0.15:
            history.now += random.choice((0.001, 0.05, 1.0))
        else:
            for _ in range(random.randint(1, 6)):
                history.run()
    history.drain()
    return history
