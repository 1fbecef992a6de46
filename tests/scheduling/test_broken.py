"""Policies that are broken on purpose: the checks of the histories must catch every one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mtplx_kernel.scheduling import mtp_batch
from mtplx_kernel.scheduling.ar_batch import ARBatchPolicy
from mtplx_kernel.scheduling.cooperative import CooperativePolicy
from mtplx_kernel.scheduling.modes import make_policy
from mtplx_kernel.scheduling.mtp_batch import Cohort, MTPBatchPolicy
from mtplx_kernel.scheduling.options import SchedulerOptions
from mtplx_kernel.scheduling.policy import Arrival, Decode, Machine, Policy, Prefill, Quantum, Wait
from mtplx_kernel.scheduling.queue import Queue, Waiting
from mtplx_kernel.scheduling.serial import SerialPolicy
from tests.scheduling.history import MACHINE, play

OPTIONS = SchedulerOptions(width=4, wait_ms=30, max_wait_ms=100, prefill_cap=2, itl_ms=80)
SEALED = replace(OPTIONS, sealed=True)


class NewestFirst(Queue):
    def __iter__(self) -> Iterator[Waiting]:
        return reversed(list(super().__iter__()))


class Reopened(Queue):
    def hand_back(self) -> list[Arrival]:
        back = super().hand_back()
        self._closed = False
        return back[:-1]


class Unadjusted(Queue):
    def expected(self, arrival: Arrival) -> int:
        return arrival.members


class RefillsSealed(MTPBatchPolicy):
    def _refill(self, cohort: Cohort, now: float) -> None:
        self._sealed = False
        super()._refill(cohort, now)
        self._sealed = True


class IgnoresMaxWait(MTPBatchPolicy):
    def _delays(self, arrival: Arrival, kind: mtp_batch.Kind, now: float) -> bool:
        return False


class NeverRefills(MTPBatchPolicy):
    def _refill(self, cohort: Cohort, now: float) -> None:
        return


class SealsYoungestKind(MTPBatchPolicy):
    def _kinds(self) -> dict[mtp_batch.Kind, list[Waiting]]:
        return dict(reversed(super()._kinds().items()))


class MixesKeys(MTPBatchPolicy):
    def _kinds(self) -> dict[mtp_batch.Kind, list[Waiting]]:
        waiting = list(self._queue)
        first = mtp_batch._kind(waiting[0].arrival) if waiting else ("", None)
        return {self._cohort.kind if self._cohort else first: waiting} if waiting else {}


class OpensClosedCohorts(MTPBatchPolicy):
    def arrive(self, arrival: Arrival, now: float) -> None:
        super().arrive(replace(arrival, cohort=None), now)


class WaitsTwiceAsLong(MTPBatchPolicy):
    def next(self, now: float) -> Quantum | Wait | None:
        self._wait = 2 * OPTIONS.wait_ms / 1000
        return super().next(now)


class WaitsThoughFull(MTPBatchPolicy):
    def _ready(self, jobs: list[Waiting]) -> float:
        return max(super()._ready(jobs), jobs[0].came + self._wait)


class WaitsWhileSomebodyRuns(MTPBatchPolicy):
    def next(self, now: float) -> Quantum | Wait | None:
        quantum = super().next(now)
        if len(self._queue) and isinstance(quantum, Decode):
            return Wait(now + 1e-3)
        return quantum


class ReusesCohortNames(MTPBatchPolicy):
    def _seal(self, now: float) -> None:
        super()._seal(now)
        if self._cohort is not None:
            self._cohort.name = f"cohort-{self._cohorts % 2}-r0"


class ForgetsLeavers(MTPBatchPolicy):
    def leave(self, request_id: str, now: float) -> None:
        if self._queue.take(request_id):
            self._ended += 1


class AdmitsTwice(MTPBatchPolicy):
    def _admit(self, job: Waiting) -> None:
        self._batch.join(job.arrival)


class IgnoresMemory(MTPBatchPolicy):
    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        super().__init__(options, replace(machine, fits=lambda tokens: True))


class OneTooMany(MTPBatchPolicy):
    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        super().__init__(replace(options, width=options.width + 1), machine)


class OnePromptTooMany(ARBatchPolicy):
    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        super().__init__(replace(options, prefill_cap=options.prefill_cap + 1), machine)


class ForgetsRewinds(ARBatchPolicy):
    def rewind(self, request_id: str, prefill: int) -> None:
        return


class SaysAgainAlways(ARBatchPolicy):
    def next(self, now: float) -> Quantum | None:
        quantum = super().next(now)
        return replace(quantum, again=True) if isinstance(quantum, Decode) else quantum


class NeverSaysAgain(ARBatchPolicy):
    def next(self, now: float) -> Quantum | None:
        quantum = super().next(now)
        return replace(quantum, again=False) if isinstance(quantum, Decode) else quantum


class PrefillsFirst(ARBatchPolicy):
    def next(self, now: float) -> Quantum | None:
        self._batch._decode_is_next = False
        return super().next(now)


class DecodesFirst(ARBatchPolicy):
    def next(self, now: float) -> Quantum | None:
        self._batch._decode_is_next = True
        return super().next(now)


class WidestLane(ARBatchPolicy):
    def next(self, now: float) -> Quantum | None:
        quantum = super().next(now)
        return replace(quantum, lane=4) if isinstance(quantum, Decode) else quantum


class LeavesOneOut(ARBatchPolicy):
    def next(self, now: float) -> Quantum | None:
        quantum = super().next(now)
        if isinstance(quantum, Decode) and len(quantum.request_ids) == 2:
            return replace(quantum, request_ids=quantum.request_ids[:1], lane=1)
        return quantum


class FeedsTooMuch(ARBatchPolicy):
    def next(self, now: float) -> Quantum | None:
        quantum = super().next(now)
        if isinstance(quantum, Prefill):
            return replace(quantum, tokens=tuple(n + 1 for n in quantum.tokens))
        return quantum


class Miscounts(ARBatchPolicy):
    def snapshot(self) -> dict[str, Any]:
        shown = super().snapshot()
        return shown | {"batch_histogram": {1: shown["target_steps"]}}


class GivesUp(CooperativePolicy):
    def next(self, now: float) -> Quantum | None:
        return None if len(self._rows) == 3 else super().next(now)


class OvertakesTheQueue(CooperativePolicy):
    def __init__(self, options: SchedulerOptions, machine: Machine) -> None:
        super().__init__(replace(options, width=options.width + 1), machine)


class AgainThoughOthersRun(CooperativePolicy):
    def next(self, now: float) -> Quantum | None:
        quantum = super().next(now)
        return replace(quantum, again=True) if isinstance(quantum, Decode) else quantum


class TakesTurns(SerialPolicy):
    def next(self, now: float) -> Quantum | None:
        quantum = super().next(now)
        if self._current is not None and (first := self._queue.first) is not None:
            return Prefill((first.arrival.request_id,), (1,))
        return quantum


class ForgetsTheCurrent(SerialPolicy):
    def withdraw(self) -> list[Arrival]:
        self._current = None
        return super().withdraw()


BROKEN: list[tuple[type[Any], SchedulerOptions]] = [
    (RefillsSealed, SEALED),
    *(
        (broken, OPTIONS)
        for broken in (
            IgnoresMaxWait,
            SealsYoungestKind,
            MixesKeys,
            OpensClosedCohorts,
            WaitsTwiceAsLong,
            WaitsThoughFull,
            WaitsWhileSomebodyRuns,
            ReusesCohortNames,
            ForgetsLeavers,
            AdmitsTwice,
            IgnoresMemory,
            OneTooMany,
            OnePromptTooMany,
            ForgetsRewinds,
            SaysAgainAlways,
            NeverSaysAgain,
            PrefillsFirst,
            DecodesFirst,
            WidestLane,
            LeavesOneOut,
            FeedsTooMuch,
            Miscounts,
            GivesUp,
            OvertakesTheQueue,
            AgainThoughOthersRun,
            TakesTurns,
            ForgetsTheCurrent,
        )
    ),
]


def caught(make: Any, name: str, options: SchedulerOptions, histories: int) -> bool:
    """Whether some history trips over a policy."""
    for seed in range(histories):
        try:
            play(seed, make, (name,) if seed % 2 else (name, "serial", name), options)
        except (AssertionError, KeyError, ValueError, StopIteration):
            return True
    return False


@pytest.mark.parametrize(("broken", "options"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_a_broken_policy_is_caught(broken: type[Any], options: SchedulerOptions) -> None:
    def make(name: str) -> Policy:
        if name != broken.name:
            return make_policy(name, options, MACHINE)
        policy: Policy = broken(MACHINE) if name == "serial" else broken(options, MACHINE)
        return policy

    assert caught(make, broken.name, options, histories=150)


@pytest.mark.parametrize("queue", [NewestFirst, Reopened, Unadjusted])
@pytest.mark.parametrize("mode", ["serial", "cooperative", "ar_batch", "mtp_batch"])
def test_a_broken_queue_is_caught(queue: type[Queue], mode: str) -> None:
    def make(name: str) -> Policy:
        policy: Any = make_policy(name, OPTIONS, MACHINE)
        policy._queue = queue()
        return policy

    assert caught(make, mode, OPTIONS, histories=150)
