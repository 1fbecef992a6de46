"""ar_batch: who joins when, and how prefill and decode share the machine."""

from __future__ import annotations

from mtplx_kernel.scheduling.ar_batch import ARBatchPolicy
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Prefill, Quantum, Ran

OPTIONS = SchedulerOptions(width=4, prefill_cap=2, itl_ms=200)
MACHINE = Machine(chunk=128)


def batch(
    *arrivals: Arrival, options: SchedulerOptions = OPTIONS, machine: Machine = MACHINE
) -> ARBatchPolicy:
    policy = ARBatchPolicy(options, machine)
    for arrival in arrivals:
        policy.arrive(arrival, 0.0)
    return policy


def run(policy: ARBatchPolicy, *left: int) -> Quantum | None:
    """Run a quantum: 40 ms a step, 2 ms a prompt token; `left` of the prompts is left, or none."""
    quantum = policy.next(0.0)
    if isinstance(quantum, Prefill):
        rest = left or (0,) * len(quantum.tokens)
        seconds = 0.002 * len(quantum.tokens) * max(quantum.tokens)
        left = dict(zip(quantum.request_ids, rest, strict=True))
        fed = dict(zip(quantum.request_ids, quantum.tokens, strict=True))
        policy.ran(quantum, Ran(seconds, left, fed=fed), 0.0)
    elif isinstance(quantum, Decode):
        policy.ran(quantum, Ran(0.04, {}, dict.fromkeys(quantum.request_ids, 1)), 0.0)
    return quantum


def ids(*names: str) -> list[Arrival]:
    return [Arrival(name, 0) for name in names]


def test_rows_join_between_two_steps_and_leave_at_once() -> None:
    policy = batch(*ids("a", "b"))
    assert run(policy) == Decode(("a", "b"), lane=2)
    policy.arrive(Arrival("c", 0), 0.0)
    assert run(policy) == Decode(("a", "b", "c"), lane=4)
    policy.leave("a", 0.0)
    assert run(policy) == Decode(("b", "c"), lane=2)


def test_past_the_width_requests_wait_in_order() -> None:
    policy = batch(*ids(*"abcdef"))
    assert run(policy) == Decode(tuple("abcd"), lane=4)
    policy.leave("b", 0.0)
    policy.leave("e", 0.0)
    assert run(policy) == Decode(tuple("acdf"), lane=4)
    assert policy.snapshot()["waiting"] == 0


def test_prompts_share_a_forward_up_to_the_cap_at_full_chunks_while_nobody_decodes() -> None:
    policy = batch(Arrival("a", 300), Arrival("b", 50), Arrival("c", 10), Arrival("d", 10))
    assert run(policy, 172, 0) == Prefill(("a", "b"), (128, 50))
    assert run(policy) == Decode(("b",), again=False)
    # A step leaves 160 of 200 ms, at 2 ms a token: 40 for each.
    assert run(policy, 132, 0) == Prefill(("a", "c"), (40, 10))
    assert run(policy) == Decode(("b", "c"), lane=2, again=False)
    assert run(policy, 92, 0) == Prefill(("a", "d"), (40, 10))


def test_a_chunk_fills_what_a_step_leaves_of_the_gap() -> None:
    policy = batch(Arrival("p", 1000))
    assert run(policy, 872) == Prefill(("p",), (128,))
    policy.arrive(Arrival("a", 0), 0.0)
    quanta = [run(policy, 872) for _ in range(6)]
    decode, chunk = Decode(("a",), again=False), Prefill(("p",), (80,))  # 40 + 80 * 2 ms
    assert quanta == [decode, chunk] * 3


def test_a_prompt_out_of_the_prefix_cache_does_not_make_tokens_look_cheap() -> None:
    policy = batch(Arrival("p", 100))
    quantum = policy.next(0.0)
    assert quantum == Prefill(("p",), (100,))
    # One token was fed, the cache had the rest.
    policy.ran(quantum, Ran(0.004, {"p": 0}, fed={"p": 1}), 0.0)
    policy.arrive(Arrival("q", 300), 0.0)
    assert run(policy) == Decode(("p",), again=False)
    assert run(policy, 260) == Prefill(("q",), (40,))  # 200 ms less a step of 40, at 4 ms a token


def test_a_chunk_is_not_measured_where_a_row_ended_in_it() -> None:
    policy = batch(Arrival("p", 100), Arrival("r", 20))
    quantum = policy.next(0.0)
    assert quantum == Prefill(("p", "r"), (100, 20))
    policy.leave("p", 0.0)
    policy.ran(quantum, Ran(0.4, {"r": 0}, fed={"r": 20}), 0.0)
    policy.arrive(Arrival("q", 300), 0.0)
    assert run(policy) == Decode(("r",), again=False)
    assert run(policy, 284) == Prefill(("q",), (16,))  # still unmeasured


def test_where_the_gap_is_small_the_oldest_prompt_has_it() -> None:
    options = SchedulerOptions(width=4, prefill_cap=2, itl_ms=30)
    policy = batch(*ids("a"), options=options)
    assert run(policy) == Decode(("a",), again=True)
    for name in "pq":
        policy.arrive(Arrival(name, 100), 0.0)
    assert run(policy, 92, 92) == Prefill(("p", "q"), (8, 8))
    assert run(policy) == Decode(("a",), again=False)
    assert run(policy, 84) == Prefill(("p",), (8,))


def test_who_could_not_run_at_once_stays_in_the_queue() -> None:
    options = SchedulerOptions(width=4, prefill_cap=1)
    policy = batch(Arrival("p", 10), Arrival("q", 10), Arrival("z", 0), options=options)
    assert policy.next(0.0) == Prefill(("p",), (10,))
    assert [arrival.request_id for arrival in policy.withdraw()] == ["q", "z"]


def test_who_has_no_prompt_to_feed_does_not_wait_for_those_who_have() -> None:
    options = SchedulerOptions(width=4, prefill_cap=1)
    policy = batch(Arrival("p", 200), Arrival("z", 0), Arrival("q", 10), options=options)
    assert run(policy, 184) == Prefill(("p",), (16,))
    assert run(policy) == Decode(("z",), again=False)
    assert policy.snapshot()["waiting"] == 1


def test_the_same_rows_decode_again_unless_a_prompt_comes_between() -> None:
    policy = batch(*ids("a"), Arrival("p", 20))
    assert run(policy, 4) == Prefill(("p",), (16,))
    assert run(policy) == Decode(("a",), again=False)
    assert run(policy) == Prefill(("p",), (4,))
    assert run(policy) == Decode(("a", "p"), lane=2, again=True)


def test_memory_keeps_the_order() -> None:
    machine = Machine(fits=lambda tokens: sum(tokens) <= 100)
    big = [Arrival("a", 0, 200), Arrival("b", 0, 60), Arrival("c", 0, 60), Arrival("d", 0, 10)]
    policy = batch(*big, machine=machine)
    assert run(policy) == Decode(("a",))  # alone it always runs
    policy.leave("a", 0.0)
    assert run(policy) == Decode(("b",))  # c does not fit, d does not overtake it
    policy.leave("b", 0.0)
    assert run(policy) == Decode(("c", "d"), lane=2)


def test_rewound_rows_prefill_under_the_cap_and_before_newcomers() -> None:
    policy = batch(*ids(*"abc"))
    run(policy)
    policy.arrive(Arrival("d", 0), 0.0)
    for name in "abc":
        policy.rewind(name, 7)
    policy.rewind("unknown", 7)
    assert run(policy) == Prefill(("a", "b"), (7, 7))
    assert policy.snapshot()["waiting"] == 1
    assert run(policy) == Decode(("a", "b"), lane=2, again=False)
    assert run(policy) == Prefill(("c",), (7,))
    assert run(policy) == Decode(("a", "b", "d", "c"), lane=4)


def test_a_lane_that_does_not_pay_is_not_used() -> None:
    machine = Machine(throughput={1: 10.0, 2: 20.0, 4: 15.0})
    policy = batch(*ids(*"abc"), machine=machine)
    assert run(policy) == Decode(("a", "b"), lane=2)
    shown = policy.snapshot()
    assert (shown["width"], shown["lanes"], shown["dropped_lanes"]) == (2, [1, 2], [4])


def test_what_the_caches_take_is_the_limit() -> None:
    policy = batch(*ids("a", "b"), machine=Machine(widest=1))
    assert run(policy) == Decode(("a",))


def test_the_snapshot_says_what_ran() -> None:
    policy = batch(*ids("a", "b", "c"), Arrival("p", 10), *ids("e"))
    assert run(policy) == Prefill(("p",), (10,))
    for _ in range(2):
        run(policy)
    policy.leave("b", 0.0)
    policy.leave("p", 0.0)
    run(policy)
    policy.leave("a", 0.0)
    assert policy.snapshot() == {
        "open_requests": 2,
        "ended_requests": 3,
        "waiting": 0,
        "prefilling": 0,
        "decoding": 2,
        "width": 4,
        "lanes": [1, 2, 4],
        "dropped_lanes": [],
        "batch_histogram": {3: 1, 4: 2},
        "fixed_width_histogram": {4: 3},
        "target_steps": 3,
    }


def test_withdrawing_hands_back_who_waits() -> None:
    policy = batch(*ids(*"abcdef"))
    run(policy)
    assert [arrival.request_id for arrival in policy.withdraw()] == ["e", "f"]
    policy.leave("a", 0.0)
    assert run(policy) == Decode(tuple("bcd"), lane=4)
