"""The scheduler modes by name, and the policy of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mtplx_kernel.scheduling.ar_batch import ARBatchPolicy
from mtplx_kernel.scheduling.cohort import CohortPolicy
from mtplx_kernel.scheduling.cooperative import CooperativePolicy
from mtplx_kernel.scheduling.hyper import HyperPolicy
from mtplx_kernel.scheduling.mtp_batch import MTPBatchPolicy
from mtplx_kernel.scheduling.options import SchedulerMode, SchedulerOptions, check_mode
from mtplx_kernel.scheduling.policy import Machine, Policy
from mtplx_kernel.scheduling.serial import SerialPolicy

__all__ = ["POLICIES", "SchedulerMode", "check_mode", "make_policy"]

POLICIES: Mapping[SchedulerMode, Callable[[SchedulerOptions, Machine], Policy]] = {
    SchedulerMode.SERIAL: lambda _, machine: SerialPolicy(machine),
    SchedulerMode.COOPERATIVE: CooperativePolicy,
    SchedulerMode.AR_BATCH: ARBatchPolicy,
    SchedulerMode.MTP_BATCH: MTPBatchPolicy,
    SchedulerMode.MTP_COHORT_EXPERIMENTAL: CohortPolicy,
    SchedulerMode.HYPER: lambda _, machine: HyperPolicy(machine),
}


def make_policy(name: str, options: SchedulerOptions, machine: Machine) -> Policy:
    """Build the policy of a scheduler mode.

    Parameters
    ----------
    name
        One of `SchedulerMode`.
    options
        As `SchedulerOptions.of` gives them for this mode: an experimental mode is refused there.
    machine
        What the model and the machine can do.

    Raises
    ------
    InvalidRequest
        If the name is unknown.
    """
    return POLICIES[check_mode(name)](options, machine)
