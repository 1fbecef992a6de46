"""Policies by name: six of them, each its own."""

from __future__ import annotations

import pytest

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.scheduling.modes import POLICIES, SchedulerMode, check_mode, make_policy
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Serve, Wait

OPTIONS = SchedulerOptions(wait_ms=5)
NAMES = ["serial", "cooperative", "ar_batch", "mtp_batch", "mtp_cohort_experimental", "hyper"]


def test_the_six_modes_have_their_names() -> None:
    assert list(SchedulerMode) == NAMES
    assert list(POLICIES) == NAMES


@pytest.mark.parametrize("mode", SchedulerMode)
def test_a_policy_carries_the_name_of_its_mode(mode: SchedulerMode) -> None:
    for name in (mode, str(mode)):
        policy = make_policy(name, OPTIONS, Machine())
        assert policy.name == mode
        assert policy.drafts is (mode != "ar_batch")
        assert policy.rule
        policy.arrive(Arrival("a", 0), 1.0)
        quantum = policy.next(1.0)
        if isinstance(quantum, Wait):
            assert quantum == Wait(1.005)
            quantum = policy.next(1.005)
        assert quantum in (Decode(("a",)), Decode(("a",), cohort="cohort-a"), Serve("a"))


@pytest.mark.parametrize("mode", SchedulerMode)
def test_policies_share_nothing(mode: SchedulerMode) -> None:
    one, two = make_policy(mode, OPTIONS, Machine()), make_policy(mode, OPTIONS, Machine())
    one.arrive(Arrival("a", 0), 0.0)
    assert two.next(9.0) is None


@pytest.mark.parametrize("name", ["fifo", "", "SERIAL", "serial ", None, 3])
def test_unknown_names_are_refused(name: str) -> None:
    expected = f"scheduler {name!r} is no scheduler; allowed: {', '.join(NAMES)}"
    with pytest.raises(InvalidRequest) as caught:
        make_policy(name, OPTIONS, Machine())
    assert str(caught.value) == expected
    with pytest.raises(InvalidRequest) as caught:
        check_mode(name)
    assert str(caught.value) == expected
