"""The hyper policy over random histories: the queue's head is served, and the gate agrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.scheduling.hyper import HyperPolicy
from mtplx_kernel.scheduling.policy import Arrival, Machine, Serve

STEPS = st.lists(
    st.sampled_from(["arrive", "serve", "fail", "next"]).map(lambda name: (name, 0))
    | st.tuples(st.just("leave"), st.integers(0, 6)),
    max_size=60,
)


def policy_with(*names: str) -> HyperPolicy:
    policy = HyperPolicy(Machine())
    for name in names:
        policy.arrive(Arrival(name, 5), 0.0)
    return policy


def serve(policy: HyperPolicy, *, fails: bool = False) -> str:
    """Do what the engine does with `Serve`: the request runs whole, and leaves within its run."""
    quantum = policy.next(0.0)
    assert isinstance(quantum, Serve)
    name = quantum.request_id

    def closure() -> Mapping[str, Any]:
        assert policy.next(0.0) == quantum
        policy.leave(name, 0.0)
        if fails:
            raise ZeroDivisionError
        return {"request_id": name}

    bound = policy.bind(name, closure, "ar")
    if fails:
        with pytest.raises(ZeroDivisionError):
            bound()
    else:
        assert bound() == {"request_id": name}
    return name


@given(steps=STEPS)
def test_the_oldest_request_is_served_and_the_gate_counts_each_once(
    steps: list[tuple[str, int]],
) -> None:
    policy = policy_with()
    queue: list[str] = []
    arrived = done = failed = abandoned = 0
    for step, number in steps:
        if step == "arrive":
            queue.append(str(arrived))
            policy.arrive(Arrival(str(arrived), arrived), 0.0)
            arrived += 1
        elif step == "leave":
            name = queue.pop(number) if number < len(queue) else "unknown"
            policy.leave(name, 0.0)
            policy.leave(name, 0.0)
            abandoned += name != "unknown"
        elif step == "next" or not queue:
            assert policy.next(0.0) == (Serve(queue[0]) if queue else None)
        else:
            assert serve(policy, fails=step == "fail") == queue.pop(0)
            done, failed = done + (step == "serve"), failed + (step == "fail")
        snapshot = policy.snapshot()
        assert snapshot["queue_depth"] == len(queue)
        assert snapshot["admitted_total"] == arrived
        assert snapshot["completed_total"] == done
        assert snapshot["failed_total"] == failed
        assert snapshot["abandoned_total"] == abandoned
        assert snapshot["active"] == 0


def test_a_ticket_knows_its_request() -> None:
    policy = policy_with("a")
    ticket = policy.ticket("a")
    assert (ticket.request_id, ticket.prompt_tokens, ticket.state) == ("a", 5, "queued")
    policy.leave("a", 0.0)
    assert ticket.state == "abandoned"
    with pytest.raises(KeyError):
        policy.ticket("a")


def test_withdrawing_hands_back_who_waits_and_lets_the_served_one_end() -> None:
    policy = policy_with("a", "b", "c")
    assert policy.next(0.0) == Serve("a")
    assert policy.withdraw() == [Arrival("b", 5), Arrival("c", 5)]
    assert policy.snapshot()["abandoned_total"] == 2
    assert serve(policy) == "a"
    assert policy.next(0.0) is None
    policy.arrive(Arrival("d", 5), 0.0)
    assert policy.next(0.0) is None


def test_withdrawing_before_anybody_is_served_hands_back_all() -> None:
    policy = policy_with("a", "b")
    assert [a.request_id for a in policy.withdraw()] == ["a", "b"]
    assert policy.withdraw() == []
    assert policy.next(0.0) is None
    assert policy.snapshot()["queue_depth"] == 0


def test_a_request_that_must_feed_anew_keeps_its_turn() -> None:
    policy = policy_with("a", "b")
    assert policy.next(0.0) == Serve("a")
    policy.rewind("a", 9)
    assert policy.next(0.0) == Serve("a")


def test_the_gate_reads_the_policys_clock() -> None:
    times = iter([1.0, 4.0, 9.0])
    policy = HyperPolicy(Machine(), clock=lambda: next(times))
    policy.arrive(Arrival("a", 0), 0.0)
    serve(policy)
    assert policy.snapshot()["queue_wait_s"]["max"] == 3.0
    assert policy.snapshot()["run_s"]["max"] == 5.0


def test_it_is_called_hyper_and_its_rows_draft() -> None:
    assert (HyperPolicy.name, HyperPolicy.drafts) == ("hyper", True)
