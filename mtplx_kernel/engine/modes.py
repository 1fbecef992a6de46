"""The scheduler mode in force: switching, what the modes may know of the machine, telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mtplx_kernel.decoding.step import Outcome
from mtplx_kernel.engine.fit import LANES
from mtplx_kernel.engine.jobs import Job
from mtplx_kernel.engine.request import cause
from mtplx_kernel.engine.timeline import CohortRecord, Timeline
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.scheduling.modes import make_policy
from mtplx_kernel.scheduling.options import TAKEN, SchedulerMode, SchedulerOptions, check_mode
from mtplx_kernel.scheduling.policy import PREFILL_CHUNK, Decode, Machine, Prefill
from mtplx_kernel.scheduling.relay import Relay

if TYPE_CHECKING:
    from mtplx_kernel.engine.runner import Runner

ONE_ROW = (SchedulerMode.SERIAL, SchedulerMode.HYPER)
BATCHED = (
    SchedulerMode.AR_BATCH,
    SchedulerMode.MTP_BATCH,
    SchedulerMode.MTP_COHORT_EXPERIMENTAL,
)


@dataclass(slots=True)
class Tally:
    """What a mode's forwards came to."""

    verify_cycles: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    last_error: str | None = None


class Modes:
    """Which mode runs. Used on the owner thread only.

    Parameters
    ----------
    runner
        Whose requests they schedule.
    scheduler, settings
        The mode to begin with, and its settings by name.
    timeline
        Where cohorts are recorded.

    Attributes
    ----------
    machine
        What the policy in force knows of the machine.
    """

    def __init__(
        self, runner: Runner, scheduler: str, settings: Mapping[str, Any], timeline: Timeline
    ) -> None:
        self._runner = runner
        self._timeline = timeline
        self._cohort: CohortRecord | None = None
        self._members: set[str] = set()
        self._tallies: dict[str, Tally] = {}
        self._throughput: dict[int, float] = {}
        self._unmeasured: list[int] = []
        self._name, self._settings = SchedulerMode(scheduler), dict(settings)
        self.options = SchedulerOptions.of(scheduler, settings)
        self.machine = self._machine(self._name, self.options)
        self.relay = Relay(make_policy(self._name, self.options, self.machine))

    def switch(self, scheduler: str | None, settings: Mapping[str, Any]) -> str:
        """Put another mode in force, or the same (None) with other settings; returns its name.

        Requests that run finish under the mode that admitted them; those that wait move over.

        Raises
        ------
        InvalidRequest
            If the mode or a setting is unknown or cannot be had here; then nothing changes.
        """
        name = self._name if scheduler is None else check_mode(scheduler)
        wished = {**(self._settings if name is self._name else {}), **settings}
        options = SchedulerOptions.of(name, wished)
        if name is self._name and _meant(name, options) == self.settings:
            self._settings = wished
            return str(name)  # what is installed, such as an executor, stays
        machine = self._machine(name, options)
        policy = make_policy(name, options, machine)
        self.relay.switch(policy)
        self._name, self._settings = name, wished
        self.options, self.machine = options, machine
        if name not in BATCHED:
            self._unmeasured.clear()
        self._tallies[name] = Tally()
        for job in self._runner.jobs:
            if not job.admitted:
                window = job.handle.window
                window.scheduler_mode, window.scheduler_policy = policy.name, policy.rule
        return str(name)

    def settle(self) -> bool:
        """While nothing runs, measure a lane that a switch under load left unmeasured.

        Returns
        -------
        bool
            Whether there was one.
        """
        if not self._unmeasured:
            return False
        try:
            self._measure(self._unmeasured.pop(0))
        except Exception as error:  # nobody waits for it who could be told
            self._unmeasured.clear()
            self.failed(f"lanes could not be measured: {cause(error)}")
        return True

    def joined(self, quantum: Prefill | Decode, jobs: Sequence[Job]) -> None:
        """Note who runs together."""
        pooled = self.relay.running.name == SchedulerMode.MTP_COHORT_EXPERIMENTAL
        for job in jobs:
            job.handle.window.cohort_id = quantum.cohort
            job.row.pool = quantum.cohort if pooled else None
        if quantum.cohort is not None:
            self._record(quantum, quantum.cohort, jobs)
        if isinstance(quantum, Prefill):
            return
        for job in jobs:
            window = job.handle.window
            window.lane = max(quantum.lane, window.lane or 0)
            window.width = max(len(jobs), window.width)

    def tally(self, job: Job, outcome: Outcome) -> None:
        """Count a row's part in a verify."""
        tally = self._tally(job.handle.window.scheduler_mode)
        tally.verify_cycles += 1
        tally.accepted_drafts += outcome.accepted
        tally.rejected_drafts += outcome.drafted - outcome.accepted

    def failed(self, reason: str) -> None:
        """Note why a forward failed."""
        self._tally(self.relay.running.name).last_error = reason

    def left(self, job: Job) -> None:
        """Close the cohort that a job was the last of."""
        if job.row.request_id not in self._members:
            return
        self._members.discard(job.row.request_id)
        if self._cohort is not None and not self._members:
            self._cohort.ended = self._runner.now

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that mean something to the mode in force, by name."""
        return _meant(self._name, self.options)

    def snapshot(self) -> dict[str, Any]:
        """The mode in force, its settings and its telemetry, as plain data."""
        known = {**self.relay.snapshot(), "settings": self.settings}
        for name in [n for n in SchedulerMode if n in known]:
            tally = self._tallies.get(name) or Tally()
            known[name] = {
                **known[name],
                "row_verifies": tally.verify_cycles,
                "accepted_drafts": tally.accepted_drafts,
                "rejected_drafts": tally.rejected_drafts,
                "last_error": tally.last_error,
            }
        return known

    def _tally(self, name: str) -> Tally:
        return self._tallies.setdefault(name, Tally())

    def _record(self, quantum: Prefill | Decode, name: str, jobs: Sequence[Job]) -> None:
        cohort = self._cohort
        if cohort is None or cohort.cohort_id != name:
            key = jobs[0].handle.request.compatibility
            cohort = self._cohort = CohortRecord(name, key, 1, self._runner.now)
            self._members.clear()
            self._timeline.form(cohort)
        cohort.ended = None
        if isinstance(quantum, Decode):
            cohort.lane = max(cohort.lane, quantum.lane)
        for request_id in quantum.request_ids:
            if request_id not in self._members:
                self._members.add(request_id)
                cohort.members.append(request_id)

    def _machine(self, mode: SchedulerMode, options: SchedulerOptions) -> Machine:
        """What the mode may know; what batches cost is measured for the modes that batch."""
        runner = self._runner
        known = Machine(chunk=PREFILL_CHUNK[runner.loaded.facts.device], fits=runner.memory.fits)
        if mode in ONE_ROW:
            return known
        if not runner.step.caches.rollback:
            raise self._refusal(mode, runner.fit.rollback_reason or "", "serial, hyper")
        if mode not in BATCHED:
            return known
        if runner.unbatched is not None:
            raise self._refusal(mode, runner.unbatched, "serial, cooperative, hyper")
        self._throughput.update(runner.fit.throughput)
        if len(runner.jobs):  # what runs must not stand still meanwhile
            self._unmeasured = [*(n for n in LANES if n < options.width), options.width]
        else:
            self._measure(options.width)
        return replace(known, throughput=self._throughput)

    def _measure(self, width: int) -> None:
        self._runner.measure_width(width)
        self._throughput.update(self._runner.fit.throughput)

    def _refusal(self, mode: SchedulerMode, reason: str, allowed: str) -> InvalidRequest:
        name = self._runner.loaded.facts.name
        return InvalidRequest(
            f"scheduler {mode} cannot be had: {name} decodes one row at a time ({reason}); "
            f"allowed: {allowed}"
        )


def _meant(mode: SchedulerMode, options: SchedulerOptions) -> dict[str, Any]:
    """The options that mean something to a mode, by name."""
    return {name: getattr(options, name) for name in TAKEN[mode]}
