"""Requests that want to be alone stand in a line, one at a time, whatever the mode."""

from __future__ import annotations

from mtplx_kernel.scheduling.ar_batch import ARBatchPolicy
from mtplx_kernel.scheduling.hyper import HyperPolicy
from mtplx_kernel.scheduling.mtp_batch import MTPBatchPolicy
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Policy, Serve
from mtplx_kernel.scheduling.relay import Relay
from mtplx_kernel.scheduling.serial import SerialPolicy

OPTIONS = SchedulerOptions(width=4, wait_ms=0)


def ar_batch() -> Policy:
    return ARBatchPolicy(OPTIONS, Machine())


def mtp_batch() -> Policy:
    return MTPBatchPolicy(OPTIONS, Machine())


def line(policy: Policy, *names: str) -> Relay:
    """Requests in their order; those in capitals want to be alone."""
    made = Relay(policy)
    for n, name in enumerate(names):
        made.arrive(Arrival(name, 0, alone=name.isupper()), float(n))
    return made


def rows(relay: Relay, now: float = 9.0) -> tuple[str, ...]:
    """Who runs next."""
    quantum = relay.next(now)
    if isinstance(quantum, Serve):
        return (quantum.request_id,)
    assert isinstance(quantum, Decode)
    return quantum.request_ids


def test_one_of_them_runs_at_a_time_and_others_beside_it() -> None:
    relay = line(ar_batch(), "A", "B", "x", "C")
    assert rows(relay) == ("A", "x")
    relay.leave("A", 9.0)
    assert rows(relay) == ("x", "B")
    relay.leave("x", 9.0)
    relay.leave("B", 9.0)
    assert rows(relay) == ("C",)
    relay.leave("C", 9.0)
    assert relay.next(9.0) is None


def test_where_cohorts_are_formed_each_has_one_of_its_own() -> None:
    relay = line(mtp_batch(), "A", "x", "B", "y")
    assert relay.next(9.0) == Serve("A", "hyper-A-A")
    relay.leave("A", 9.0)
    assert rows(relay) == ("x", "y")
    relay.leave("x", 9.0)
    relay.leave("y", 9.0)
    assert relay.next(9.0) == Serve("B", "hyper-B-B")


def test_one_that_leaves_the_line_is_passed_over() -> None:
    relay = line(ar_batch(), "A", "B", "C")
    relay.leave("B", 9.0)
    relay.leave("A", 9.0)
    assert rows(relay) == ("C",)


def test_where_all_run_one_at_a_time_they_keep_their_place_among_the_others() -> None:
    for policy in (SerialPolicy(Machine()), HyperPolicy(Machine())):
        relay = line(policy, "A", "B", "x", "C")
        for name in ("A", "B", "x", "C"):
            assert rows(relay) == (name,)
            relay.leave(name, 9.0)


def test_the_line_outlasts_a_switch() -> None:
    relay = line(ar_batch(), "A", "B", "C", "x")
    assert rows(relay) == ("A", "x")
    relay.switch(mtp_batch())
    relay.switch(ar_batch())
    assert rows(relay) == ("A", "x")
    relay.leave("x", 9.0)
    relay.leave("A", 9.0)
    assert rows(relay) == ("B",)


def test_a_line_that_waits_goes_over_to_a_mode_with_its_own_and_comes_back() -> None:
    relay = line(ar_batch(), "A", "B", "C")
    assert rows(relay) == ("A",)
    relay.switch(SerialPolicy(Machine()))
    relay.leave("A", 9.0)
    assert rows(relay) == ("B",)
    relay.switch(ar_batch())
    relay.leave("B", 9.0)
    relay.arrive(Arrival("D", 0, alone=True), 9.0)
    assert rows(relay) == ("C",)
    relay.leave("C", 9.0)
    assert rows(relay) == ("D",)


def test_one_that_waits_for_its_first_turn_moves_to_the_next_mode() -> None:
    relay = line(ar_batch(), "A", "B")
    relay.switch(mtp_batch())
    assert relay.next(9.0) == Serve("A", "hyper-A-A")
    relay.leave("A", 9.0)
    assert rows(relay) == ("B",)
