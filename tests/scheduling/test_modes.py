"""Policies by name: what exists is built, the rest is refused in a line that says what exists."""

from __future__ import annotations

import pytest

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.scheduling.modes import POLICIES, SchedulerMode, make_policy
from mtplx_kernel.scheduling.policy import Arrival, Decode


def test_the_six_modes_have_their_names() -> None:
    assert list(SchedulerMode) == [
        "serial",
        "cooperative",
        "ar_batch",
        "mtp_batch",
        "mtp_cohort_experimental",
        "hyper",
    ]


@pytest.mark.parametrize("mode", POLICIES)
def test_a_policy_carries_the_name_of_its_mode(mode: SchedulerMode) -> None:
    for name in (mode, str(mode)):
        policy = make_policy(name, "cpu")
        assert policy.name == mode
        policy.arrive(Arrival("a", 0), 0.0)
        assert policy.next(0.0) == Decode(("a",))


def test_policies_share_nothing() -> None:
    one, two = make_policy("serial", "cpu"), make_policy("serial", "cpu")
    one.arrive(Arrival("a", 0), 0.0)
    assert two.next(0.0) is None


@pytest.mark.parametrize("mode", [m for m in SchedulerMode if m not in POLICIES])
def test_modes_that_are_still_missing_say_so(mode: SchedulerMode) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_policy(mode, "cpu")
    allowed = ", ".join(POLICIES)
    assert (
        str(caught.value) == f"scheduler {str(mode)!r} is not in this version; allowed: {allowed}"
    )


@pytest.mark.parametrize("name", ["fifo", "", "SERIAL", "serial "])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_policy(name, "gpu")
    allowed = ", ".join(POLICIES)
    assert str(caught.value) == f"scheduler {name!r} is no scheduler; allowed: {allowed}"
