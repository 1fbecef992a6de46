"""mtp_batch: when a cohort is sealed, who joins it, and whose turn comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mtplx_kernel.scheduling.cohort import CohortPolicy
from mtplx_kernel.scheduling.mtp_batch import MTPBatchPolicy
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import (
    Arrival,
    Decode,
    Machine,
    Prefill,
    Quantum,
    Ran,
    Serve,
    Wait,
)

OPTIONS = SchedulerOptions(width=4, wait_ms=500, max_wait_ms=2000, prefill_cap=2)


def cohorts(
    *arrivals: Arrival, options: SchedulerOptions = OPTIONS, machine: Machine | None = None
) -> MTPBatchPolicy:
    policy = MTPBatchPolicy(options, machine or Machine())
    for arrival in arrivals:
        policy.arrive(arrival, 0.0)
    return policy


def run(policy: MTPBatchPolicy, now: float) -> Quantum | Wait | None:
    quantum = policy.next(now)
    if isinstance(quantum, Prefill):
        policy.ran(quantum, Ran(0.01, dict.fromkeys(quantum.request_ids, 0)), now)
    elif isinstance(quantum, Decode):
        policy.ran(quantum, Ran(0.01, {}, dict.fromkeys(quantum.request_ids, 2)), now)
    return quantum


def test_a_chunk_may_take_two_gaps_where_tokens_come_together() -> None:
    chunks = []
    for burst in (1, 2, 5):
        policy = cohorts(Arrival("a", 0), options=replace(OPTIONS, itl_ms=100, wait_ms=0))
        assert policy.next(0.0) == Decode(("a",), lane=1, cohort="cohort-a")
        policy.ran(Decode(("a",)), Ran(0.04, tokens={"a": burst}), 0.0)
        policy.arrive(Arrival("p", 500), 0.0)
        quantum = policy.next(0.0)
        assert quantum == Prefill(("p",), (16,), "cohort-a")
        policy.ran(quantum, Ran(0.032, {"p": 484}, fed={"p": 16}), 0.0)
        quantum = policy.next(0.0)
        assert isinstance(quantum, Decode)
        policy.ran(quantum, Ran(0.04, tokens={"a": burst}), 0.0)
        quantum = policy.next(0.0)
        assert isinstance(quantum, Prefill)
        chunks.append(quantum.tokens)
    # One gap of 100 ms or two of them, less a cycle of 40, at 2 ms a token.
    assert chunks == [(30,), (80,), (80,)]


def jobs(names: str, key: str = "") -> list[Arrival]:
    return [Arrival(name, 0, key=key) for name in names]


def test_a_full_cohort_is_sealed_at_once() -> None:
    policy = cohorts(*jobs("abc"))
    assert policy.next(0.0) == Wait(0.5)
    policy.arrive(Arrival("d", 0), 0.1)
    assert run(policy, 0.1) == Decode(tuple("abcd"), lane=4, cohort="cohort-a")


def test_an_unfilled_one_is_sealed_when_its_first_job_has_waited() -> None:
    policy = cohorts(*jobs("a"))
    policy.arrive(Arrival("b", 0), 0.4)
    assert policy.next(0.4) == Wait(0.5)
    assert run(policy, 0.5) == Decode(("a", "b"), lane=2, cohort="cohort-a")


def test_no_wait_is_possible() -> None:
    policy = cohorts(*jobs("a"), options=SchedulerOptions(wait_ms=0))
    assert run(policy, 0.0) == Decode(("a",), lane=1, cohort="cohort-a")


def test_a_cohort_has_one_key_and_others_come_in_the_order_of_their_oldest_job() -> None:
    policy = cohorts(*jobs("a", "x"), *jobs("b", "y"), *jobs("c", "z"), *jobs("d", "x"))
    assert run(policy, 0.5) == Decode(("a", "d"), lane=2, cohort="cohort-a")
    assert policy.snapshot()["waiting"] == {"y": 1, "z": 1}
    assert policy.snapshot()["cohort_key"] == "x"
    policy.leave("a", 0.6)
    policy.leave("d", 0.6)
    assert run(policy, 0.6) == Decode(("b",), lane=1, cohort="cohort-b")
    policy.leave("b", 0.7)
    assert run(policy, 0.7) == Decode(("c",), lane=1, cohort="cohort-c")


def test_a_full_cohort_does_not_wait_for_one_that_is_not_ready() -> None:
    policy = cohorts(*jobs("a", "x"), *jobs("bcde", "y"))
    assert run(policy, 0.1) == Decode(tuple("bcde"), lane=4, cohort="cohort-b")


def test_the_oldest_compatible_job_takes_a_free_place() -> None:
    policy = cohorts(*jobs("abcdef", "x"))
    run(policy, 0.0)
    policy.leave("b", 0.1)
    assert run(policy, 0.1) == Decode(tuple("acde"), lane=4, cohort="cohort-a")
    policy.arrive(Arrival("g", 0, key="y"), 0.1)
    policy.leave("a", 0.2)
    policy.leave("c", 0.2)
    assert run(policy, 0.2) == Decode(tuple("def"), lane=4, cohort="cohort-a")
    assert policy.snapshot()["refills"] == 2


def test_a_small_cohort_grows_into_wider_lanes() -> None:
    policy = cohorts(*jobs("a"))
    assert run(policy, 0.5) == Decode(("a",), lane=1, cohort="cohort-a")
    for arrival in jobs("bc"):
        policy.arrive(arrival, 0.6)
    assert run(policy, 0.6) == Decode(tuple("abc"), lane=4, cohort="cohort-a")


def test_nobody_joins_a_sealed_cohort() -> None:
    policy = cohorts(*jobs("abcde"), options=replace(OPTIONS, sealed=True))
    run(policy, 0.0)
    policy.leave("b", 0.1)
    assert run(policy, 0.1) == Decode(tuple("acd"), lane=4, cohort="cohort-a")
    for name in "acd":
        policy.leave(name, 0.2)
    assert run(policy, 0.5) == Serve("e", "cohort-e")
    assert policy.snapshot()["refills"] == 0


def test_refills_stop_once_another_key_has_waited_long_enough() -> None:
    policy = cohorts(*jobs("abcd", "x"), *jobs("o", "y"))
    run(policy, 0.0)
    policy.arrive(Arrival("e", 0, key="x"), 0.0)
    policy.arrive(Arrival("f", 0, key="x"), 0.0)
    policy.leave("a", 1.98)
    assert run(policy, 1.98) == Decode(tuple("bcde"), lane=4, cohort="cohort-a")
    policy.leave("b", 2.0)
    assert run(policy, 2.0) == Decode(tuple("cde"), lane=4, cohort="cohort-a")
    for name in "cde":
        policy.leave(name, 2.1)
    assert run(policy, 2.1) == Decode(("o",), lane=1, cohort="cohort-o")


def test_who_might_keep_the_others_waiting_too_long_does_not_join() -> None:
    """Of two that wait for a slot, only the one that ends in time, or no later than who runs."""
    long, short = Arrival("l", 0, tokens=30, key="x"), Arrival("s", 0, tokens=15, key="x")
    for newcomer, running, joins in ((long, 20, False), (short, 14, True), (long, 40, True)):
        rows = [Arrival(name, 0, tokens=running, key="x") for name in "abcd"]
        policy = cohorts(*rows)
        quantum = policy.next(0.0)
        assert isinstance(quantum, Decode)
        policy.ran(quantum, Ran(0.1, dict.fromkeys("abcd", 0), dict.fromkeys("abcd", 1)), 0.1)
        policy.arrive(Arrival("o", 0, key="y"), 0.1)  # due at 2.1, after 20 cycles
        policy.arrive(newcomer, 0.1)
        policy.leave("a", 0.1)
        quantum = policy.next(0.1)
        assert isinstance(quantum, Decode)
        assert (newcomer.request_id in quantum.request_ids) is joins, newcomer


def test_if_the_other_key_leaves_refills_go_on() -> None:
    policy = cohorts(*jobs("abcd", "x"), *jobs("o", "y"), *jobs("e", "x"))
    run(policy, 0.0)
    policy.leave("a", 3.0)
    assert run(policy, 3.0) == Decode(tuple("bcd"), lane=4, cohort="cohort-a")
    policy.leave("o", 3.0)
    assert run(policy, 3.0) == Decode(tuple("bcde"), lane=4, cohort="cohort-a")


def closed(names: str, members: int, key: str = "") -> list[Arrival]:
    return [Arrival(name, 0, key=key, cohort="mine", members=members) for name in names]


def test_a_closed_cohort_is_exactly_its_members() -> None:
    policy = cohorts(*closed("ab", 3), *jobs("x"))
    assert run(policy, 0.5) == Decode(("x",), lane=1, cohort="cohort-x")
    policy.arrive(closed("c", 3)[0], 0.6)
    assert run(policy, 0.6) == Decode(("x",), lane=1, cohort="cohort-x")
    policy.leave("x", 0.7)
    policy.arrive(Arrival("y", 0), 0.7)
    assert run(policy, 0.7) == Decode(tuple("abc"), lane=4, cohort="mine-a")
    policy.leave("a", 0.8)
    assert run(policy, 0.8) == Decode(tuple("bc"), lane=2, cohort="mine-a")


def test_a_closed_cohort_is_not_waited_for_once_it_is_complete() -> None:
    policy = cohorts(*closed("ab", 2))
    assert run(policy, 0.0) == Decode(tuple("ab"), lane=2, cohort="mine-a")


def test_members_that_leave_early_are_not_waited_for() -> None:
    policy = cohorts(*closed("ab", 3))
    assert policy.next(0.0) == Wait(2.0)
    policy.leave("a", 0.1)
    policy.arrive(closed("c", 3)[0], 0.2)
    assert run(policy, 0.2) == Decode(tuple("bc"), lane=2, cohort="mine-b")


def test_members_that_never_come_are_waited_for_so_long_and_no_longer() -> None:
    policy = cohorts(*closed("ab", 3))
    assert policy.next(1.9) == Wait(2.0)
    assert run(policy, 2.0) == Decode(tuple("ab"), lane=2, cohort="mine-a")


def test_a_closed_cohort_wider_than_the_lanes_is_still_one_cohort() -> None:
    policy = cohorts(*closed("abcdef", 6), *jobs("x", "y"), options=replace(OPTIONS, sealed=True))
    assert run(policy, 0.0) == Decode(tuple("abcd"), lane=4, cohort="mine-a")
    for name in "abcd":
        policy.leave(name, 9.0)
    assert run(policy, 9.0) == Decode(tuple("ef"), lane=2, cohort="mine-a")
    assert policy.snapshot()["cohorts"] == 1


def test_a_closed_cohort_that_moves_expects_who_is_left() -> None:
    policy = cohorts(*closed("abcdef", 6))
    run(policy, 0.0)
    back = policy.withdraw()
    assert [(arrival.request_id, arrival.members) for arrival in back] == [("e", 2), ("f", 2)]
    assert run(cohorts(*back), 0.0) == Decode(("e", "f"), lane=2, cohort="mine-e")


def test_joining_prompts_are_capped_and_take_turns_with_cycles() -> None:
    policy = cohorts(*(Arrival(name, 5) for name in "abcd"))
    quanta = [run(policy, 0.0) for _ in range(5)]
    assert quanta == [
        Prefill(("a", "b"), (5, 5), "cohort-a"),
        Decode(("a", "b"), lane=2, cohort="cohort-a", again=False),
        Prefill(("c", "d"), (5, 5), "cohort-a"),
        Decode(tuple("abcd"), lane=4, cohort="cohort-a"),
        Decode(tuple("abcd"), lane=4, cohort="cohort-a"),
    ]


def test_who_finds_no_memory_waits_and_is_not_overtaken() -> None:
    machine = Machine(fits=lambda tokens: sum(tokens) <= 100)
    sizes = {"a": 50, "b": 40, "c": 30, "d": 5}
    policy = cohorts(*(Arrival(n, 0, size) for n, size in sizes.items()), machine=machine)
    # No more fit, so there is nothing to wait for.
    assert run(policy, 0.0) == Decode(("a", "b"), lane=2, cohort="cohort-a")
    policy.leave("b", 0.1)
    assert run(policy, 0.1) == Decode(("a", "c", "d"), lane=4, cohort="cohort-a")


def test_rewound_rows_stay_in_their_cohort() -> None:
    policy = cohorts(*jobs("abcd"))
    run(policy, 0.0)
    for name in "bcd":
        policy.rewind(name, 9)
    policy.leave("a", 0.0)
    assert run(policy, 0.0) == Prefill(("b", "c"), (9, 9), "cohort-a")
    assert run(policy, 0.0) == Decode(("b", "c"), lane=2, cohort="cohort-a", again=False)
    assert run(policy, 0.0) == Prefill(("d",), (9,), "cohort-a")
    assert run(policy, 0.0) == Decode(("b", "c", "d"), lane=4, cohort="cohort-a")


def test_the_snapshot_says_what_ran() -> None:
    policy = cohorts(*jobs("abcd", "x"), *jobs("e", "y"), *jobs("fg", "x"))
    run(policy, 0.0)
    policy.leave("a", 0.1)
    policy.leave("b", 0.1)
    policy.leave("c", 0.1)
    run(policy, 3.0)  # nobody joins d, as e has waited
    policy.leave("d", 3.1)
    run(policy, 3.1)
    assert policy.snapshot() == {
        "open_requests": 3,
        "ended_requests": 4,
        "waiting": {"x": 2},
        "cohort": "cohort-e",
        "cohort_key": "y",
        "prefilling": 0,
        "decoding": 1,
        "width": 4,
        "lanes": [1, 2, 4],
        "dropped_lanes": [],
        "cohorts": 2,
        "refills": 0,
        "solo_runs": 0,
        "batch_histogram": {1: 2, 4: 1},
        "fixed_width_histogram": {1: 2, 4: 1},
        "target_verify_cycles": 3,
    }
    policy.leave("e", 3.2)
    run(policy, 3.2)
    shown = policy.snapshot()
    assert (shown["solo_runs"], shown["cohorts"]) == (1, 3)  # e never had a neighbour, d had


def test_withdrawing_lets_the_cohort_finish() -> None:
    policy = cohorts(*(Arrival(name, 5) for name in "abcdef"))
    run(policy, 0.0)
    assert [arrival.request_id for arrival in policy.withdraw()] == ["e", "f"]
    policy.leave("a", 0.0)
    assert run(policy, 0.0) == Decode(("b",), cohort="cohort-a", again=False)
    assert run(policy, 0.0) == Prefill(("c", "d"), (5, 5), "cohort-a")
    for name in "bcd":
        policy.leave(name, 0.0)
    assert policy.next(0.0) is None


@pytest.mark.parametrize("policy", [MTPBatchPolicy, CohortPolicy])
def test_both_cohort_modes_form_the_same_cohorts(policy: type[MTPBatchPolicy]) -> None:
    made = policy(OPTIONS, Machine())
    for arrival in jobs("abcde"):
        made.arrive(arrival, 0.0)
    assert run(made, 0.0) == Decode(tuple("abcd"), lane=4, cohort="cohort-a")
