"""The queue: order, and what is left of closed cohorts."""

from __future__ import annotations

from mtplx_kernel.scheduling.policy import Arrival
from mtplx_kernel.scheduling.queue import Queue, Waiting


def filled(*arrivals: Arrival) -> Queue:
    queue = Queue()
    for number, arrival in enumerate(arrivals):
        queue.push(arrival, float(number))
    return queue


def test_first_in_first_out_unless_taken_out() -> None:
    a, b, c = (Arrival(name, 1) for name in "abc")
    queue = filled(a, b, c)
    assert queue.first == Waiting(a, 0.0)
    assert queue.take("b") == Waiting(b, 1.0)
    assert queue.take("b") is None
    assert queue.take("a") == Waiting(a, 0.0)
    assert (list(queue), len(queue)) == ([Waiting(c, 2.0)], 1)


def test_after_handing_back_nobody_is_admitted() -> None:
    a, b = Arrival("a", 1), Arrival("b", 1)
    queue = filled(a, b)
    assert queue.hand_back() == [a, b]
    queue.push(a, 5.0)
    assert (queue.first, list(queue), len(queue)) == (None, [], 1)
    assert queue.hand_back() == [a]


def test_a_closed_cohort_expects_who_has_not_left() -> None:
    members = [Arrival(name, 1, cohort="c", members=4) for name in "abc"]
    queue = filled(*members, Arrival("x", 1))
    assert queue.expected(members[0]) == 4
    queue.take("a")
    assert queue.expected(members[1]) == 3
    back = [(arrival.request_id, arrival.members) for arrival in queue.hand_back()]
    assert back == [("b", 3), ("c", 3), ("x", 1)]


def test_a_name_is_free_again_once_all_members_have_left() -> None:
    members = [Arrival(name, 1, cohort="c", members=2) for name in "ab"]
    queue = filled(*members)
    queue.take("a")
    queue.take("b")
    assert queue.expected(members[0]) == 2
