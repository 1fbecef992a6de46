"""The serial policy over random histories: strict first in, first out, one request at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_kernel.scheduling.policy import (
    PREFILL_CHUNK,
    Arrival,
    Decode,
    Machine,
    Prefill,
    Quantum,
    Ran,
)
from mtplx_kernel.scheduling.serial import SerialPolicy

CHUNK = 7


def serial(chunk: int) -> SerialPolicy:
    return SerialPolicy(Machine(chunk=chunk))


@dataclass
class History:
    """Drives a policy as the engine does, and checks each quantum against a plain queue."""

    policy: SerialPolicy = field(default_factory=lambda: serial(CHUNK))
    queue: list[str] = field(default_factory=list)
    prefill_left: dict[str, int] = field(default_factory=dict)
    arrived: int = 0
    left: int = 0
    ran: list[Quantum | None] = field(default_factory=list)

    def arrive(self, prefill: int) -> None:
        request_id = f"r{self.arrived}"
        self.arrived += 1
        self.queue.append(request_id)
        self.prefill_left[request_id] = prefill
        self.policy.arrive(Arrival(request_id, prefill), float(self.arrived))

    def leave(self, place: int) -> None:
        """The request at a place in the queue leaves; past its end, an unknown one."""
        if place < len(self.queue):
            self.policy.leave(self.queue.pop(place), 0.0)
            self.left += 1
        else:
            self.policy.leave("unknown", 0.0)
            if self.arrived:
                self.policy.leave("r0" if "r0" not in self.queue else "r-1", 0.0)

    def run(self) -> None:
        quantum = self.policy.next(0.0)
        self.ran.append(quantum)
        if not self.queue:
            assert quantum is None
            return
        first = self.queue[0]
        left = self.prefill_left[first]
        if left == 0:
            assert quantum == Decode((first,))
        else:
            assert quantum == Prefill((first,), (min(left, CHUNK),))
            self.prefill_left[first] -= min(left, CHUNK)
            self.policy.ran(quantum, Ran(0.0, {first: self.prefill_left[first]}), 0.0)

    def check(self) -> None:
        assert self.policy.snapshot() == {
            "open_requests": len(self.queue),
            "ended_requests": self.left,
        }


STEPS = st.lists(
    st.tuples(st.just("arrive"), st.integers(0, 30))
    | st.tuples(st.just("leave"), st.integers(0, 5))
    | st.tuples(st.just("run"), st.just(0)),
    max_size=60,
)


def play(steps: list[tuple[str, int]]) -> History:
    history = History()
    for step, number in steps:
        if step == "arrive":
            history.arrive(number)
        elif step == "leave":
            history.leave(number)
        else:
            history.run()
        history.check()
    return history


@given(steps=STEPS)
def test_every_quantum_is_the_oldest_requests(steps: list[tuple[str, int]]) -> None:
    play(steps)


@given(steps=STEPS)
def test_a_history_has_one_outcome(steps: list[tuple[str, int]]) -> None:
    assert play(steps).ran == play(steps).ran


@given(steps=STEPS)
def test_a_request_runs_from_start_to_end_without_another_between(
    steps: list[tuple[str, int]],
) -> None:
    ran = [q for q in play(steps).ran if q is not None]
    served = [q.request_ids[0] for q in ran if isinstance(q, Prefill | Decode)]
    turns = [one for i, one in enumerate(served) if i == 0 or served[i - 1] != one]
    assert len(turns) == len(set(turns))
    assert turns == sorted(turns, key=lambda request_id: int(request_id[1:]))


@given(
    prompts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    cycles=st.integers(1, 4),
    chunk=st.integers(1, 12),
)
def test_prefill_chunks_add_up_and_come_before_decoding(
    prompts: list[int], cycles: int, chunk: int
) -> None:
    policy = serial(chunk)
    for i, prefill in enumerate(prompts):
        policy.arrive(Arrival(str(i), prefill), 0.0)
    for i, prefill in enumerate(prompts):
        fed: list[int] = []
        while isinstance(quantum := policy.next(0.0), Prefill):
            assert quantum.request_ids == (str(i),)
            fed += quantum.tokens
            policy.ran(quantum, Ran(0.0, {str(i): prefill - sum(fed)}), 0.0)
        assert sum(fed) == prefill
        assert all(0 < tokens <= chunk for tokens in fed)
        assert len(fed) == -(-prefill // chunk)
        for _ in range(cycles):
            assert quantum == Decode((str(i),))
            quantum = policy.next(0.0)
        policy.leave(str(i), 0.0)
    assert policy.next(0.0) is None


@pytest.mark.parametrize("chunk", PREFILL_CHUNK.values())
def test_a_long_prompt_is_fed_in_the_chunk_of_the_machine(chunk: int) -> None:
    policy = serial(chunk)
    policy.arrive(Arrival("a", chunk + 1), 0.0)
    assert policy.next(0.0) == Prefill(("a",), (chunk,))
    policy.ran(Prefill(("a",), (chunk,)), Ran(0.0, {"a": 1}), 0.0)
    assert policy.next(0.0) == Prefill(("a",), (1,))


def test_what_the_prefix_cache_holds_is_not_fed() -> None:
    policy = serial(4)
    policy.arrive(Arrival("a", 10), 0.0)
    assert policy.next(0.0) == Prefill(("a",), (4,))
    policy.ran(Prefill(("a",), (4,)), Ran(0.0, {"a": 0}), 0.0)
    assert policy.next(0.0) == Decode(("a",))


def test_leaving_twice_counts_once() -> None:
    policy = serial(8)
    policy.arrive(Arrival("a", 0), 0.0)
    policy.leave("a", 1.0)
    policy.leave("a", 2.0)
    assert policy.snapshot() == {"open_requests": 0, "ended_requests": 1}


def test_a_cancelled_prefill_gives_way_at_once() -> None:
    policy = serial(4)
    policy.arrive(Arrival("a", 10), 0.0)
    policy.arrive(Arrival("b", 0), 0.0)
    assert policy.next(0.0) == Prefill(("a",), (4,))
    policy.leave("a", 0.0)
    assert policy.next(0.0) == Decode(("b",))


def test_a_rewound_request_is_fed_again_and_others_are_left_alone() -> None:
    policy = serial(4)
    policy.arrive(Arrival("a", 0), 0.0)
    policy.arrive(Arrival("b", 0), 0.0)
    assert policy.next(0.0) == Decode(("a",))
    policy.rewind("a", 3)
    policy.rewind("b", 9)
    assert policy.next(0.0) == Prefill(("a",), (3,))
    policy.leave("a", 0.0)
    assert policy.next(0.0) == Decode(("b",))


def test_withdrawing_hands_back_all_but_who_runs() -> None:
    policy = serial(4)
    for name in "abc":
        policy.arrive(Arrival(name, 0), 0.0)
    assert policy.next(0.0) == Decode(("a",))
    assert [arrival.request_id for arrival in policy.withdraw()] == ["b", "c"]
    assert policy.next(0.0) == Decode(("a",))
    policy.arrive(Arrival("d", 0), 0.0)
    policy.leave("a", 0.0)
    assert policy.next(0.0) is None, "nobody is admitted any more"
