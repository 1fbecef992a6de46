"""cooperative: whose turn it is, how long a chunk is, and that nobody starves."""

from __future__ import annotations

from random import Random

import pytest

from mtplx_kernel.scheduling.cooperative import CooperativePolicy, Turns
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Prefill, Quantum, Ran
from tests.scheduling.history import Play

OPTIONS = SchedulerOptions(width=4, itl_ms=200, ttft_ms=60_000)
MACHINE = Machine(chunk=128)


def run(policy: CooperativePolicy, now: float, *, left: int = 0, tokens: int = 1) -> Quantum:
    """Run a quantum: 20 ms a cycle, 2 ms a prompt token."""
    quantum = policy.next(now)
    if isinstance(quantum, Prefill):
        (name,), (fed,) = quantum.request_ids, quantum.tokens
        policy.ran(quantum, Ran(0.002 * fed, {name: left}, fed={name: fed}), now)
    else:
        assert isinstance(quantum, Decode)
        (name,) = quantum.request_ids
        policy.ran(quantum, Ran(0.02, {name: 0}, {name: tokens}), now)
    return quantum


def who(policy: CooperativePolicy, times: int) -> str:
    """Whose the next cycles are; names have one letter."""
    names = []
    for _ in range(times):
        quantum = run(policy, 0.0)
        assert isinstance(quantum, Decode)
        names.append(quantum.request_ids[0])
    return "".join(names)


def with_rows(*arrivals: Arrival, options: SchedulerOptions = OPTIONS) -> CooperativePolicy:
    policy = CooperativePolicy(options, MACHINE)
    for arrival in arrivals:
        policy.arrive(arrival, 0.0)
    return policy


def test_equals_take_turns() -> None:
    assert who(with_rows(Arrival("a", 0), Arrival("b", 0), Arrival("c", 0)), 7) == "abcabca"


def test_twice_the_weight_is_twice_the_tokens() -> None:
    policy = with_rows(Arrival("a", 0, weight=2.0), Arrival("b", 0))
    assert who(policy, 30).count("a") == 20


def test_what_counts_is_tokens_not_cycles() -> None:
    policy = with_rows(Arrival("a", 0), Arrival("b", 0))
    run(policy, 0.0, tokens=3)
    assert who(policy, 5) == "bbbab"


def test_a_newcomer_begins_where_the_others_are() -> None:
    policy = with_rows(Arrival("a", 0), Arrival("b", 0))
    who(policy, 100)
    policy.arrive(Arrival("c", 0), 0.0)
    assert sorted(who(policy, 3)) == ["a", "b", "c"]
    assert who(policy, 30).count("c") == 10


def test_only_so_many_are_under_way_and_the_rest_wait_in_order() -> None:
    policy = with_rows(*(Arrival(name, 0) for name in "abcdef"))
    assert who(policy, 8) == "abcdabcd"
    policy.leave("b", 0.0)
    assert "e" in who(policy, 4)
    assert policy.snapshot()["waiting"] == 1


def test_who_does_not_fit_in_the_memory_waits() -> None:
    policy = CooperativePolicy(OPTIONS, Machine(fits=lambda tokens: sum(tokens) <= 100))
    for name, tokens in (("a", 60), ("b", 60), ("c", 10)):
        policy.arrive(Arrival(name, 0, tokens), 0.0)
    assert who(policy, 3) == "aaa"  # c does not overtake b
    policy.leave("a", 0.0)
    assert who(policy, 4) == "bcbc"


def test_a_chunk_and_the_cycles_of_a_round_fill_the_gap() -> None:
    policy = with_rows(Arrival("p", 300))
    assert run(policy, 0.0, left=172) == Prefill(("p",), (128,))  # nobody waits for tokens
    for name in "abc":
        policy.arrive(Arrival(name, 0), 0.0)
    chunks, cycles = [], []
    for _ in range(40):
        quantum = run(policy, 0.0, left=172)
        if isinstance(quantum, Prefill):
            chunks.append(quantum.tokens[0])
            cycles.append(0)
        elif cycles:
            cycles[-1] += 1
    # Three cycles of 20 ms leave 140 of 200 ms, at 2 ms a token.
    assert len(chunks) >= 2
    assert all(69 <= chunk <= 70 for chunk in chunks)
    assert all(count >= 3 for count in cycles[:-1])


def test_a_chunk_is_never_below_the_smallest() -> None:
    options = SchedulerOptions(width=4, itl_ms=1)
    policy = with_rows(Arrival("a", 0), Arrival("p", 300), options=options)
    chunks = [
        q.tokens for q in (run(policy, 0.0, left=300) for _ in range(30)) if type(q) is Prefill
    ]
    assert len(chunks) >= 3
    assert (chunks[0], set(chunks[1:])) == ((16,), {(8,)})


def test_a_prompt_out_of_the_prefix_cache_does_not_make_tokens_look_cheap() -> None:
    policy = with_rows(Arrival("p", 128))
    quantum = policy.next(0.0)
    assert quantum == Prefill(("p",), (128,))
    # One token was fed, the cache had the rest.
    policy.ran(quantum, Ran(0.002, {"p": 0}, fed={"p": 1}), 0.0)
    policy.arrive(Arrival("q", 300), 0.0)
    chunks = [
        q.tokens for q in (run(policy, 0.0, left=300) for _ in range(30)) if type(q) is Prefill
    ]
    assert chunks[:2] == [(90,), (90,)]  # 200 ms less one cycle of 20, at 2 ms a token


def deadlines(policy: CooperativePolicy, now: float, times: int) -> str:
    return "".join(
        quantum.request_ids[0].upper() if isinstance(quantum, Prefill) else quantum.request_ids[0]
        for quantum in (run(policy, now, left=100) for _ in range(times))
    )


def test_a_request_close_to_its_deadline_goes_first() -> None:
    options = SchedulerOptions(width=4, itl_ms=200, ttft_ms=1000)
    prompts = [Arrival("a", 0, weight=100.0), Arrival("p", 100)]
    early, late = with_rows(*prompts, options=options), with_rows(*prompts, options=options)
    # By weight, a chunk that counts for 8 tokens and more waits for 800 of the other's.
    assert deadlines(early, 0.1, 20).count("P") == 1
    assert deadlines(late, 0.95, 20).count("P") == 10
    assert late.snapshot()["out_of_turn"] == 9
    assert late._rows["p"].virtual < 2  # chunks in a hurry are free: only the first one counted


def test_how_close_depends_on_the_rounds_that_a_prompt_takes() -> None:
    options = SchedulerOptions(width=4, itl_ms=200, ttft_ms=2000)
    policy = with_rows(Arrival("m", 300), *(Arrival(name, 0) for name in "abc"), options=options)
    for _ in range(8):
        run(policy, 0.0, left=172)  # all have spoken, and all costs are known
    policy.leave("m", 0.0)
    policy.arrive(Arrival("p", 140), 0.0)
    # Chunks of 70 make two rounds: 280 ms for the prompt, 180 for three rounds' cycles.
    policy.next(0.0)
    row = policy._rows["p"]
    assert [policy._is_close(row, now) for now in (1.07, 1.09)] == [False, True]


def test_who_has_spoken_has_no_deadline_any_more() -> None:
    options = SchedulerOptions(width=4, ttft_ms=1000)
    policy = with_rows(Arrival("a", 0), Arrival("b", 0), options=options)
    run(policy, 0.0)
    run(policy, 0.0)
    assert policy.snapshot()["out_of_turn"] == 0
    policy.arrive(Arrival("c", 0), 5.0)
    assert [run(policy, 5.9 + n).request_ids[0] for n in range(4)].count("c") <= 2  # type: ignore[union-attr]


def test_a_rewound_request_prefills_again_and_keeps_its_turn() -> None:
    policy = with_rows(Arrival("a", 0), Arrival("b", 0))
    who(policy, 4)
    policy.rewind("a", 10)
    policy.rewind("unknown", 3)
    assert run(policy, 0.0) == Prefill(("a",), (10,))
    assert who(policy, 3) == "bab"


def test_only_who_is_alone_decodes_again() -> None:
    policy = with_rows(Arrival("a", 0))
    assert run(policy, 0.0) == Decode(("a",), again=True)
    policy.arrive(Arrival("b", 0), 0.0)
    assert run(policy, 0.0) == Decode(("a",), again=False)
    assert run(policy, 0.0) == Decode(("b",), again=False)


def test_withdrawing_hands_back_who_is_not_under_way() -> None:
    policy = with_rows(*(Arrival(name, 0) for name in "abcdef"))
    run(policy, 0.0)
    assert [arrival.request_id for arrival in policy.withdraw()] == ["e", "f"]
    policy.leave("a", 0.0)
    assert set(who(policy, 6)) == {"b", "c", "d"}


def test_the_snapshot_says_who_is_where() -> None:
    policy = with_rows(*(Arrival(name, 0) for name in "abc"), Arrival("p", 20), Arrival("e", 0))
    who(policy, 3)
    run(policy, 0.0, left=4)
    policy.leave("a", 0.0)
    run(policy, 0.0)
    assert policy.snapshot() == {
        "open_requests": 4,
        "ended_requests": 1,
        "waiting": 0,
        "prefilling": 1,
        "decoding": 3,
        "width": 4,
        "quanta": 5,
        "out_of_turn": 0,
    }


def test_what_a_rewound_request_finds_in_the_prefix_cache_is_not_counted() -> None:
    policy = with_rows(Arrival("p", 300), Arrival("a", 0))
    assert who(policy, 1) == "a"
    assert run(policy, 0.0, left=100) == Prefill(("p",), (16,))
    policy.rewind("p", 90)
    assert who(policy, 1) == "a"
    quantum = policy.next(0.0)
    assert quantum == Prefill(("p",), (90,))
    policy.ran(quantum, Ran(0.0002, {"p": 0}, fed={"p": 0}), 0.0)
    policy.arrive(Arrival("q", 300), 0.0)
    chunks = [q for q in (run(policy, 0.0, left=300) for _ in range(9)) if type(q) is Prefill]
    assert chunks[0] == Prefill(("q",), (80,))  # 200 ms less two cycles of 20, at 2 ms a token


class NoFloor(CooperativePolicy):
    """Newcomers begin at the lowest virtual time, whatever was served since."""

    def _charge(self, row: Turns, tokens: float) -> None:
        super()._charge(row, tokens)
        self._floor = 0.0


class Overdue(CooperativePolicy):
    """A deadline goes first every time."""

    def _choose(self, now: float) -> str:
        self._hurried = False
        return super()._choose(now)


class Latest(CooperativePolicy):
    """Whoever came last goes first."""

    def _choose(self, now: float) -> str:
        return next(reversed(self._rows))


class Earliest(CooperativePolicy):
    """Whoever came first goes first."""

    def _choose(self, now: float) -> str:
        return next(iter(self._rows))


class EveryChunkOverdue(CooperativePolicy):
    """Every chunk may be out of turn."""

    def _choose(self, now: float) -> str:
        self._chunk_was_free = False
        return super()._choose(now)


FLOODED = SchedulerOptions(width=3, ttft_ms=10)


def flood(policy: CooperativePolicy, *, prefill: int = 0) -> None:
    """One long request among ever new short ones, all late; the bound is checked in it.

    With prompts in the short ones, the long one has lost its caches after its first tokens.
    """
    history = Play(lambda name: policy, "cooperative", FLOODED, MACHINE, Random(0))
    # A prompt of 16 tokens counts for one decoded one at first, and 16 * 2 ms for 1.6 of 20 ms.
    history.dearest = 2.0
    history.arrive(prefill=16, output=10**6)
    if prefill:
        history.run()
        history.run()
        sim = history.open["r0"]
        assert sim.decoded > 0
        sim.left = 10**4
        policy.rewind("r0", sim.left)
    for _ in range(1500):
        while sum(sim.output == 1 for sim in history.open.values()) < 6:
            history.arrive(prefill=prefill, output=1)
        history.run()
    assert next(iter(history.open)) == "r0"


@pytest.mark.parametrize("prefill", [0, 16])
def test_a_stream_of_short_requests_starves_nobody(prefill: int) -> None:
    flood(CooperativePolicy(FLOODED, MACHINE), prefill=prefill)


@pytest.mark.parametrize(
    ("broken", "prefill"),
    [(NoFloor, 0), (Overdue, 0), (Latest, 0), (Earliest, 0), (EveryChunkOverdue, 16)],
)
def test_the_bound_catches_who_starves(broken: type[CooperativePolicy], prefill: int) -> None:
    with pytest.raises(AssertionError, match="starved"):
        flood(broken(FLOODED, MACHINE), prefill=prefill)
