"""Requests in, tokens out, one quantum at a time: all that the owner thread does with the model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from mtplx_kernel.caching.prefix import PrefixCache
from mtplx_kernel.decoding.batching import why_not_batched
from mtplx_kernel.decoding.forking import ForkingStep
from mtplx_kernel.decoding.step import Outcome
from mtplx_kernel.engine.fit import fit, measure_width
from mtplx_kernel.engine.forking import WIDEST, ForkExecutor
from mtplx_kernel.engine.jobs import CallbackFailed, Job, Jobs, make_row
from mtplx_kernel.engine.memory import measure, weights_bytes
from mtplx_kernel.engine.modes import Modes
from mtplx_kernel.engine.request import FinishReason, Handle, cause
from mtplx_kernel.engine.slices import SLICE_S
from mtplx_kernel.engine.timeline import Timeline
from mtplx_kernel.errors import RequestFailed
from mtplx_kernel.models import blas
from mtplx_kernel.models.head import HeadFacts
from mtplx_kernel.models.load import LoadedModel
from mtplx_kernel.models.progress import Stages, untold
from mtplx_kernel.models.threads import pinned_threads
from mtplx_kernel.scheduling.cohort import CohortPolicy
from mtplx_kernel.scheduling.hyper import HyperPolicy
from mtplx_kernel.scheduling.policy import Arrival, Decode, Policy, Prefill, Ran, Serve, Wait


class Runner:
    """Runs quanta and tells each handle what happened. Used on the owner thread only.

    Parameters
    ----------
    loaded
        The model.
    scheduler
        The scheduler mode to begin with, and its settings.
    timeline
        Where cohorts and counts are recorded.
    memory_gb
        Budget for weights and caches; None takes the device's.
    prefix_mb
        Budget of the prefix cache; 0 for none.
    clock
        Seconds of one monotonic clock.
    stages
        Told of what is measured.

    Attributes
    ----------
    loaded
        The model, without a head that cannot draft for it.
    head_reason
        Why a head that was loaded does not draft; None where it does, or there is none.
    weights_bytes, caches_bytes
        What model and caches hold; plain numbers for any thread, renewed after every forward.
    memory
        What requests will take.
    between
        Called between the cycles of a request that has the model to itself; False ends it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: str,
        settings: Mapping[str, Any],
        timeline: Timeline,
        *,
        memory_gb: float | None = None,
        prefix_mb: float = 0,
        clock: Callable[[], float] = time.perf_counter,
        stages: Stages = untold,
    ) -> None:
        self._clock, self._stages = clock, stages
        self._timeline = timeline
        self.fit, caches, self._head_caches = fit(loaded, stages)
        self.head_reason: str | None = None
        if loaded.head is not None and self._head_caches is None:
            self.head_reason = f"the head in {loaded.head.facts.source} does not draft: "
            self.head_reason += self.fit.rollback_reason or ""
            loaded = replace(loaded, head=None)
        self.loaded = loaded
        self._drafter = self.fit.drafter(loaded, self._head_caches)
        self.step = ForkingStep(
            loaded.target, caches, self._drafter, look_ahead=self.fit.look_ahead
        )
        self.jobs = Jobs(clock)
        self.between: Callable[[], bool] = lambda: True
        self.weights_bytes = weights_bytes(loaded)
        memory = measure(loaded, self.weights_bytes, rollback=caches.rollback)
        self.memory = memory.within(memory_gb)
        self._prefix_bytes = int(prefix_mb * 1e6)
        self.prefix = PrefixCache(self._prefix_bytes) if prefix_mb and caches.rollback else None
        self.modes = Modes(self, scheduler, settings, timeline)
        self._note_memory()
        self._governor = blas.ThreadGovernor(blas.threads() or 1, pinned_threads() is not None)

    @property
    def head(self) -> HeadFacts | None:
        """The head that drafts; None where there is none."""
        return self.loaded.head.facts if self.loaded.head is not None else None

    @property
    def thread_reason(self) -> str | None:
        """Why fewer BLAS threads are in use than at load, or None."""
        return self._governor.reason

    @property
    def now(self) -> float:
        """Seconds of the runner's clock."""
        return self._clock()

    def submit(self, handle: Handle) -> None:
        """Queue a request."""
        request = handle.request
        try:
            row = make_row(request, self.loaded)
        except Exception as error:  # a tokenizer that cannot decode the prompt
            failure = RequestFailed(f"the prompt cannot be decoded: {cause(error)}")
            handle.fail(failure, self._clock())
            return
        handle.window.generation_mode = str(request.mode)
        policy = self.modes.relay.current
        handle.window.scheduler_mode, handle.window.scheduler_policy = policy.name, policy.rule
        self.jobs.open(handle, row)
        self.modes.relay.arrive(
            Arrival(
                row.request_id,
                row.prefill_left,
                tokens=row.prompt_length + row.room,
                key=request.compatibility,
                weight=request.weight,
                cohort=request.cohort,
                members=request.members,
                alone=request.alone,
            ),
            self._clock(),
        )

    def cancel(self, handle: Handle) -> None:
        """End a request for the reason its handle gives; one that has ended is left alone."""
        if handle.done or handle.cancel_reason is None:
            return
        if handle.request_id not in self.jobs:  # its caller was interrupted before it was posted
            self.submit(handle)
        if handle.request_id in self.jobs:
            self._end(self.jobs[handle.request_id], handle.cancel_reason)

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every open request."""
        for job in self.jobs:
            self._end(job, reason, error, keep=False)

    def run_next(self) -> float:
        """Run one quantum.

        Returns
        -------
        float
            Seconds until there may be another: 0 after one that ran, infinity if nothing waits.
        """
        self._end_cancelled()
        policy = self.modes.relay.running
        quantum = self.modes.relay.next(self._clock())
        if quantum is None:
            return 0.0 if self.modes.settle() else math.inf
        if isinstance(quantum, Wait):
            pause = max(0.0, quantum.until - self._clock())
            return min(pause, SLICE_S) if self.jobs.polled else pause
        if isinstance(quantum, Serve):
            self._serve(policy, self.jobs[quantum.request_id], quantum.cohort)
        else:
            self._run(policy, quantum)
        return 0.0

    def let_go(self) -> None:
        """Drop all, for good: its parts know it, and would else live until a collection."""
        self.__dict__.clear()

    @cached_property
    def unbatched(self) -> str | None:
        """Why rows must be decoded one at a time; None where several share a forward."""
        if not self.step.caches.rollback:
            return self.fit.rollback_reason
        return why_not_batched(self.loaded.target)

    def measure_width(self, width: int) -> None:
        """Find out what batches up to a width cost, unless it is known."""
        self.fit = measure_width(self.loaded, self.fit, width, self._stages)
        if self._drafter is not None:
            self._drafter.costs = self.fit.costs

    def fork_executor(self, width: int | None) -> ForkExecutor:
        """What makes forks of a request that has the model to itself."""
        if self.unbatched is None:
            self.measure_width(WIDEST if width is None else width)
        return ForkExecutor(
            self.step,
            self.jobs.row,
            fits=self.memory.fits,
            refusal=self.unbatched,
            width=width,
        )

    @property
    def drafters(self) -> list[str]:
        """Names of what drafts under the mode in force."""
        policy, drafter = self.modes.relay.current, self.step.drafter
        if drafter is None or not policy.drafts:
            return []
        pool = ["pool"] if isinstance(policy, CohortPolicy) else []
        return [*drafter.name.split(", "), *pool]

    def _serve(self, policy: Policy, job: Job, cohort: str | None) -> None:
        """Run one request from start to end, as its policy's gate and its caller wrap it."""
        run: Callable[[], Mapping[str, Any]] = partial(self._alone, policy, job, cohort)
        solo = job.handle.request.hooks.solo
        try:
            if isinstance(policy, HyperPolicy):
                run = policy.bind(job.row.request_id, run, str(job.row.mode))
            if solo is not None:
                solo(run)
            else:
                run()
        except BaseException as error:  # of whoever wraps the run
            if job.handle.window.finish_reason != FinishReason.ERROR:
                self.modes.failed(cause(error))
            if job.row.request_id in self.jobs:
                self._end(job, FinishReason.ERROR, f"its run failed: {cause(error)}", wipe=True)
            return
        if job.row.request_id in self.jobs:
            self._end(job, FinishReason.ERROR, "whoever wraps its run did not run it")

    def _alone(self, policy: Policy, job: Job, cohort: str | None) -> dict[str, Any]:
        """All quanta of one request; what a width executor and a solo hook get to wrap."""
        request_id, chunk = job.row.request_id, self.modes.machine.chunk
        while request_id in self.jobs:
            left = job.row.prefill_left
            if left:
                self._run(policy, Prefill((request_id,), (min(left, chunk),), cohort))
            else:
                self._run(policy, Decode((request_id,), cohort=cohort))
            go_on = self.between()
            self._end_cancelled()
            if not go_on and request_id in self.jobs:
                self._end(job, FinishReason.CANCELLED)
        window = job.handle.window
        if window.finish_reason == FinishReason.ERROR:
            raise RequestFailed(f"request {request_id} ended with an error, which its handle tells")
        return {
            "request_id": request_id,
            "finish_reason": window.finish_reason,
            "completion_tokens": window.completion_tokens,
        }

    def _end_cancelled(self) -> None:
        for job, error in self.jobs.cancelled():
            reason = FinishReason.CANCELLED if error is None else FinishReason.ERROR
            self._end(job, reason, error)

    def _run(self, policy: Policy, quantum: Prefill | Decode) -> None:
        """Run a forward over some requests, and tell their handles and the policy."""
        start = self._clock()
        jobs = [self.jobs[request_id] for request_id in quantum.request_ids]
        done, held = {job.row.request_id: 0 for job in jobs}, dict[str, int]()
        try:
            for job in jobs:
                if not job.admitted:
                    self._admit(policy, job)
            held = {job.row.request_id: job.row.committed for job in jobs}
            outcomes, at = self._forward(quantum, jobs)
        except Exception as error:  # whatever a forward raises ends its rows, and only those
            self._fail(jobs, cause(error))
        else:
            self._note_memory()
            for outcome in outcomes:
                done[outcome.row.request_id] = len(outcome.tokens)
                self._deliver(self.jobs[outcome.row.request_id], outcome, at, len(outcomes))
            if outcomes:
                self._timeline.count(start, at, sum(done.values()))
        rows = [self.jobs[i].row for i in done if i in self.jobs]
        left = {row.request_id: row.prefill_left for row in rows}
        fed = {row.request_id: row.committed - held[row.request_id] for row in rows}
        tokens, fed = (done, {}) if isinstance(quantum, Decode) else ({}, fed)
        now = self._clock()
        self.modes.relay.ran(policy, quantum, Ran(now - start, left, tokens, fed), now)

    def _admit(self, policy: Policy, job: Job) -> None:
        self.step.admit(job.row)
        self.jobs.admit(job, policy.name, policy.rule, drafts=policy.drafts)
        store = self._store(job.handle.request.hooks.restore)
        if store is not None:
            job.handle.window.cached_tokens = self.step.restore(job.row, store)

    def _store(self, asked: Any) -> Any:
        return self.prefix if asked == "engine" else asked

    def _forward(self, quantum: Prefill | Decode, jobs: list[Job]) -> tuple[list[Outcome], float]:
        """Run it: what it gave, and when that was."""
        start = self._clock()
        rows = [job.row for job in jobs]
        self.modes.joined(quantum, jobs)
        if isinstance(quantum, Prefill):
            counts = [min(n, row.prefill_left) for n, row in zip(quantum.tokens, rows, strict=True)]
            if any(counts):
                self.step.prefill(rows, counts)
            for job in jobs:
                self._prefilled(job)
            return [], start
        pending = [len(row.pending) for row in rows]
        longest = max(len(row.ids) for row in rows)
        outcomes = self.step.cycle(rows, again=quantum.again)
        widest = max(n + outcome.drafted for n, outcome in zip(pending, outcomes, strict=True))
        shape = (len(rows), widest, longest // 512)
        before = self._governor.threads
        end = self._clock()
        threads = self._governor.observe(shape, end - start)
        if threads != before:
            blas.set_threads(threads)
        return outcomes, end

    def _prefilled(self, job: Job) -> None:
        store = self._store(job.handle.request.hooks.commit)
        if store is not None:
            self.step.save(job.row, store)
        try:
            self.jobs.prefilled(job)
        except CallbackFailed as failure:
            self._end(job, FinishReason.ERROR, str(failure))

    def _deliver(self, job: Job, outcome: Outcome, at: float, rows: int) -> None:
        self.modes.tally(job, outcome)
        try:
            self.jobs.decoded(job, outcome, at, rows)
        except CallbackFailed as failure:
            self._end(job, FinishReason.ERROR, str(failure))
            return
        if outcome.error is not None:
            self._end(job, FinishReason.ERROR, outcome.error, wipe=True)
        elif outcome.ended is not None:
            self._end(job, FinishReason(outcome.ended))

    def _fail(self, jobs: Sequence[Job], reason: str) -> None:
        """End the rows of a failed forward; the others go on, from their ids where need be."""
        self.modes.failed(reason)
        whole = self.step.recover()
        for job in jobs:
            if job.row.request_id in self.jobs:
                self._end(job, FinishReason.ERROR, f"the forward failed: {reason}", wipe=whole)
        if whole:
            return
        for job in self.jobs:
            if job.admitted:
                job.row.rewind()
                self.modes.relay.rewind(job.row.request_id, job.row.prefill_left)

    def _end(
        self,
        job: Job,
        reason: FinishReason,
        error: str | None = None,
        *,
        wipe: bool = False,
        keep: bool = True,
    ) -> None:
        """End a request once: free its slot, then tell its handle.

        `keep` lets the prefix cache have its tokens; `wipe` where its slot may hold what is not
        finite.
        """
        row = job.row
        self.jobs.close(job)
        self.modes.relay.leave(row.request_id, self._clock())
        if job.admitted:
            store = self._store(job.handle.request.hooks.commit)
            if store is not None and keep and reason is not FinishReason.ERROR:
                self.step.save(row, store)
            self.step.release(row, wipe=wipe)
        self.modes.left(job)
        self._note_memory()
        self.jobs.finish(job, reason, error)

    def _note_memory(self) -> None:
        """Note what the caches hold; the prefix cache may have what they leave of the budget."""
        head = self._head_caches
        self.caches_bytes = self.step.caches.nbytes + (head.nbytes if head is not None else 0)
        if self.prefix is not None and self.memory.budget_bytes is not None:
            free = self.memory.budget_bytes - self.weights_bytes - self.caches_bytes
            self.prefix.limit(min(self._prefix_bytes, max(0, free)))
