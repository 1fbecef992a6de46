"""Every policy over thousands of random histories: arrivals, cancels, failures, switches."""

from __future__ import annotations

import pytest

from mtplx_kernel.scheduling.modes import make_policy
from mtplx_kernel.scheduling.options import SchedulerMode, SchedulerOptions
from mtplx_kernel.scheduling.policy import Policy
from tests.scheduling.history import MACHINE, play

OPTIONS = (
    SchedulerOptions(width=4, wait_ms=30, max_wait_ms=100, prefill_cap=2, itl_ms=80),
    SchedulerOptions(width=8, wait_ms=0, max_wait_ms=400, prefill_cap=3, itl_ms=200),
    SchedulerOptions(width=3, wait_ms=5, max_wait_ms=50, prefill_cap=1, sealed=True, itl_ms=30),
    SchedulerOptions(width=1, wait_ms=5, max_wait_ms=20),
)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"width{o.width}")
@pytest.mark.parametrize("mode", SchedulerMode)
def test_a_mode_keeps_its_promises(mode: str, options: SchedulerOptions) -> None:
    def make(name: str) -> Policy:
        return make_policy(name, options, MACHINE)

    for seed in range(60):
        play(seed, make, (mode,), options)


@pytest.mark.parametrize("mode", SchedulerMode)
def test_a_history_has_one_outcome(mode: str) -> None:
    def make(name: str) -> Policy:
        return make_policy(name, OPTIONS[0], MACHINE)

    for seed in range(5):
        logs = [play(seed, make, (mode,), OPTIONS[0]).log for _ in range(2)]
        assert logs[0] == logs[1]
        assert len(logs[0]) > 5 or mode == "hyper"


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"width{o.width}")
def test_switching_loses_nobody(options: SchedulerOptions) -> None:
    def make(name: str) -> Policy:
        return make_policy(name, options, MACHINE)

    for seed in range(160):
        modes = tuple(SchedulerMode)
        first = seed % len(modes)
        play(seed, make, modes[first:] + modes[:first], options)
