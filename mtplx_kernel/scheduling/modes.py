"""The scheduler modes by name, and which of them this version has."""

from __future__ import annotations

from enum import StrEnum

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.scheduling.policy import Policy
from mtplx_kernel.scheduling.serial import SerialPolicy


class SchedulerMode(StrEnum):
    """How the engine shares the model between requests."""

    SERIAL = "serial"
    COOPERATIVE = "cooperative"
    AR_BATCH = "ar_batch"
    MTP_BATCH = "mtp_batch"
    MTP_COHORT_EXPERIMENTAL = "mtp_cohort_experimental"
    HYPER = "hyper"


POLICIES = {SchedulerMode.SERIAL: SerialPolicy}


def make_policy(name: str) -> Policy:
    """Build the policy of a scheduler mode.

    Raises
    ------
    InvalidRequest
        If the name is unknown, or known but not in this version.
    """
    if name in POLICIES:
        return POLICIES[SchedulerMode(name)]()
    allowed = ", ".join(POLICIES)
    what = "is not in this version" if name in list(SchedulerMode) else "is no scheduler"
    raise InvalidRequest(f"scheduler {str(name)!r} {what}; allowed: {allowed}")
