"""From one scheduler mode to the next: what runs finishes under the mode that admitted it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mtplx_kernel.scheduling.options import SchedulerMode
from mtplx_kernel.scheduling.policy import Arrival, Policy, Quantum, Ran, Wait

ONE_AT_A_TIME = (SchedulerMode.SERIAL, SchedulerMode.HYPER)


class Relay:
    """Passes requests on to the policy in force, and lets the one before it finish first.

    Requests that want to be alone stand in a line before the policy, which has one of them at most;
    a policy that runs one request at a time has a line of its own.

    Parameters
    ----------
    policy
        The first one.
    """

    def __init__(self, policy: Policy) -> None:
        self._line = [policy]
        self._of: dict[str, Policy] = {}
        self._came: dict[str, float] = {}
        self._alone: str | None = None
        self._held: dict[str, Arrival] = {}

    @property
    def current(self) -> Policy:
        """The policy that takes new requests."""
        return self._line[-1]

    @property
    def running(self) -> Policy:
        """The policy whose requests run: an earlier one while it finishes."""
        return self._line[0]

    def switch(self, policy: Policy) -> None:
        """Put another policy in force. Who waits moves to it, in order; who runs does not.

        Nobody's wait begins anew: they arrive there at the time at which they came.
        """
        waiting = self.current.withdraw()
        self._line.append(policy)
        for arrival in waiting:
            if self._alone == arrival.request_id:
                self._alone = None
            self._enter(arrival)
        self._let_in()
        self._drop_finished()

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Take a request into the queue of the policy in force."""
        self._came[arrival.request_id] = now
        self._enter(arrival)

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request; unknown ids are ignored."""
        policy = self._of.pop(request_id, None)
        self._came.pop(request_id, None)
        self._held.pop(request_id, None)
        if policy is None:
            return
        policy.leave(request_id, now)
        if self._alone == request_id:
            self._alone = None
            self._let_in()
        self._drop_finished()

    def rewind(self, request_id: str, prefill: int) -> None:
        """A request must prefill anew."""
        self._of[request_id].rewind(request_id, prefill)

    def next(self, now: float) -> Quantum | Wait | None:
        """What to run now."""
        return self.running.next(now)

    def ran(self, policy: Policy, quantum: Quantum, ran: Ran, now: float) -> None:
        """Tell the policy that asked for a quantum what came of it, unless it has finished."""
        if any(policy is known for known in self._line):
            policy.ran(quantum, ran, now)

    def snapshot(self) -> dict[str, Any]:
        """The mode in force with its block, and the mode that still finishes with its own."""
        current, running = self.current, self.running
        known: dict[str, Any] = {"mode": current.name, current.name: current.snapshot()}
        if running is not current:
            known["finishing"] = {"mode": running.name, running.name: running.snapshot()}
        return known

    def _enter(self, arrival: Arrival) -> None:
        """Let a request arrive at the policy in force, or hold it until its turn to be alone."""
        name, policy = arrival.request_id, self.current
        if arrival.alone and not self._lines_up:
            if self._alone is not None:
                self._held[name] = arrival
                self._of.pop(name, None)
                return
            self._alone = name
            arrival = replace(arrival, cohort=f"hyper-{name}", members=1)
        self._of[name] = policy
        policy.arrive(arrival, self._came[name])

    def _let_in(self) -> None:
        """Let those who are held come as far as they may, in their order."""
        while self._held and (self._alone is None or self._lines_up):
            self._enter(self._held.pop(next(iter(self._held))))

    @property
    def _lines_up(self) -> bool:
        """Whether the policy in force runs one request at a time, in their order."""
        return self.current.name in ONE_AT_A_TIME

    def _drop_finished(self) -> None:
        busy = set(map(id, self._of.values()))
        self._line = [p for p in self._line[:-1] if id(p) in busy] + self._line[-1:]
