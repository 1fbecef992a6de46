"""The scheduler modes by name, and which of them this version has."""

from __future__ import annotations

from enum import StrEnum

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.scheduling.policy import PREFILL_CHUNK, Policy
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


def make_policy(name: str, device: str) -> Policy:
    """Build the policy of a scheduler mode.

    Parameters
    ----------
    name
        One of `SchedulerMode`.
    device
        "cpu" or "gpu": how much of a prompt is fed at once.

    Raises
    ------
    InvalidRequest
        If the name is unknown, or known but not in this version.
    """
    return POLICIES[check_mode(name)](PREFILL_CHUNK[device])


def check_mode(name: str) -> SchedulerMode:
    """The scheduler mode of this name; InvalidRequest as for `make_policy`."""
    if name in POLICIES:
        return SchedulerMode(name)
    allowed = ", ".join(POLICIES)
    what = "is not in this version" if name in list(SchedulerMode) else "is no scheduler"
    raise InvalidRequest(f"scheduler {str(name)!r} {what}; allowed: {allowed}")
