"""From one scheduler mode to the next: what runs finishes under the mode that admitted it."""

from __future__ import annotations

from typing import Any

from mtplx_kernel.scheduling.policy import Arrival, Policy, Quantum, Ran, Wait


class Relay:
    """Passes requests on to the policy in force, and lets the one before it finish first.

    Parameters
    ----------
    policy
        The first one.
    """

    def __init__(self, policy: Policy) -> None:
        self._line = [policy]
        self._of: dict[str, Policy] = {}
        self._came: dict[str, float] = {}

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
            self._of[arrival.request_id] = policy
            policy.arrive(arrival, self._came[arrival.request_id])
        self._drop_finished()

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Take a request into the queue of the policy in force."""
        self._of[arrival.request_id] = self.current
        self._came[arrival.request_id] = now
        self.current.arrive(arrival, now)

    def leave(self, request_id: str, now: float) -> None:
        """Forget a request; unknown ids are ignored."""
        policy = self._of.pop(request_id, None)
        self._came.pop(request_id, None)
        if policy is not None:
            policy.leave(request_id, now)
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

    def _drop_finished(self) -> None:
        busy = set(map(id, self._of.values()))
        self._line = [p for p in self._line[:-1] if id(p) in busy] + self._line[-1:]
