"""Requests in, tokens out, one quantum at a time: all that the owner thread does with the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep, Outcome
from mtplx_kernel.decoding.text import TextStream
from mtplx_kernel.engine.fit import fit
from mtplx_kernel.engine.memory import measure
from mtplx_kernel.engine.request import (
    FinishReason,
    Generation,
    GenerationStats,
    Handle,
    Request,
    cause,
)
from mtplx_kernel.errors import RequestFailed
from mtplx_kernel.models import blas
from mtplx_kernel.models.head import HeadFacts
from mtplx_kernel.models.load import LoadedModel
from mtplx_kernel.models.threads import pinned_threads
from mtplx_kernel.scheduling.policy import Arrival, Decode, Policy, Prefill, Quantum


@dataclass(slots=True)
class Job:
    """A request on the owner thread: its handle, and its row once it is admitted."""

    handle: Handle
    row: Row


class Runner:
    """Runs quanta and tells each handle what happened. Used on the owner thread only.

    Parameters
    ----------
    loaded
        The model.
    policy
        Says what runs next.
    clock
        Seconds of one monotonic clock.

    Attributes
    ----------
    loaded
        The model, without a head that cannot draft for it.
    head_reason
        Why a head that was loaded does not draft; None where it does, or there is none.
    weights_bytes, caches_bytes
        What the model and its caches hold in memory. Plain numbers that any thread may read,
        renewed after every forward.
    memory
        What requests will take.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        policy: Policy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self.fit, caches, self._head_caches = fit(loaded)
        self.head_reason: str | None = None
        if loaded.head is not None and self._head_caches is None:
            self.head_reason = f"the head in {loaded.head.facts.source} does not draft: "
            self.head_reason += self.fit.rollback_reason or ""
            loaded = replace(loaded, head=None)
        self.loaded = loaded
        drafter = self.fit.drafter(loaded, self._head_caches)
        self.step = DecodeStep(loaded.target, caches, drafter, look_ahead=self.fit.look_ahead)
        self.jobs: dict[str, Job] = {}
        self.weights_bytes = _weights_bytes(loaded)
        self.memory = measure(loaded, self.weights_bytes, rollback=caches.rollback)
        self.caches_bytes = self._held_bytes()
        self._governor = blas.ThreadGovernor(blas.threads() or 1, pinned_threads() is not None)

    @property
    def head(self) -> HeadFacts | None:
        """The head that drafts; None where there is none."""
        return self.loaded.head.facts if self.loaded.head is not None else None

    @property
    def thread_reason(self) -> str | None:
        """Why fewer BLAS threads are in use than at load, or None."""
        return self._governor.reason

    def submit(self, handle: Handle) -> None:
        """Queue a request."""
        try:
            row = self._row(handle.request)
        except Exception as error:  # a tokenizer that cannot decode the prompt
            failure = RequestFailed(f"the prompt cannot be decoded: {cause(error)}")
            handle.fail(failure, self._clock())
            return
        self.jobs[row.request_id] = Job(handle, row)
        self._policy.arrive(Arrival(row.request_id, row.prefill_left), self._clock())

    def _row(self, request: Request) -> Row:
        facts = self.loaded.facts
        end_ids = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            end_ids |= facts.end_ids
        return Row(
            request_id=request.request_id,
            ids=list(request.prompt_ids),
            params=request.params,
            seed=request.seed,
            mode=request.mode,
            end_ids=end_ids,
            context_length=facts.context_length,
            text=TextStream(self.loaded.tokenizer, request.prompt_ids, request.params.stop),
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
        for job in list(self.jobs.values()):
            self._end(job, reason, error)

    def run_next(self) -> bool:
        """Run one quantum; False if there was none."""
        quantum = self._policy.next(self._clock())
        if quantum is None:
            return False
        jobs = [self.jobs[i] for i in _members(quantum)]
        for job in jobs:
            window = job.handle.window
            if window.admitted is None:
                window.admitted = window.prefill_started = self._clock()
        try:
            outcomes = self._forward(quantum, [job.row for job in jobs])
        except Exception as error:  # whatever a forward raises ends its rows, and only those
            for job in jobs:
                self._end(job, FinishReason.ERROR, f"the forward failed: {cause(error)}", wipe=True)
        else:
            self.caches_bytes = self._held_bytes()
            for outcome in outcomes:
                self._deliver(self.jobs[outcome.row.request_id], outcome)
        return True

    def snapshot(self) -> dict[str, Any]:
        """The scheduler mode in force and its telemetry, as plain data."""
        return {"mode": self._policy.name, self._policy.name: self._policy.snapshot()}

    @property
    def drafters(self) -> list[str]:
        """Names of what drafts."""
        return [] if self.step.drafter is None else self.step.drafter.name.split(", ")

    def inspect(self, ids: Sequence[int], top: int) -> list[tuple[int, float]]:
        """The likeliest next ids with their log-probabilities, after a forward of its own."""
        target = self.loaded.target
        hidden = target.forward(mx.array([list(ids)]), None)
        logits = target.logits(hidden[0, -1:])[0]
        logprobs = logits - mx.logsumexp(logits)
        best = mx.argsort(-logprobs)[:top]
        found: list[int] = best.tolist()  # type: ignore[assignment]
        values: list[float] = logprobs[best].tolist()  # type: ignore[assignment]
        return list(zip(found, values, strict=True))

    def _held_bytes(self) -> int:
        head = self._head_caches
        return self.step.caches.nbytes + (head.nbytes if head is not None else 0)

    def _forward(self, quantum: Quantum, rows: list[Row]) -> list[Outcome]:
        start = self._clock()
        if isinstance(quantum, Prefill):
            self.step.prefill(rows[0], quantum.tokens)
            return []
        width = sum(len(row.pending) for row in rows)
        outcomes = self.step.cycle(rows)
        shape = (len(rows), width + sum(o.drafted for o in outcomes), len(rows[0].ids) // 512)
        before = self._governor.threads
        threads = self._governor.observe(shape, self._clock() - start)
        if threads != before:
            blas.set_threads(threads)
        return outcomes

    def _deliver(self, job: Job, outcome: Outcome) -> None:
        handle, window = job.handle, job.handle.window
        if outcome.tokens and window.first_token is None:
            window.first_token = self._clock()
            window.first_block = len(outcome.tokens)
        window.record_cycle(outcome.drafted, outcome.accepted)
        window.completion_tokens += len(outcome.tokens)
        window.end_token = outcome.end_token
        for token in outcome.tokens:
            if token.text:
                handle.push(token.text)
        try:
            if handle.request.on_token is not None:
                for token in outcome.tokens:
                    handle.request.on_token(token.id, token.text)
        except BaseException as error:  # the caller's code, even sys.exit(), ends its request only
            self._end(job, FinishReason.ERROR, f"the on_token callback raised {cause(error)}")
            return
        if outcome.error is not None:
            self._end(job, FinishReason.ERROR, outcome.error, wipe=True)
        elif outcome.ended is not None:
            self._end(job, FinishReason(outcome.ended))

    def _end(
        self, job: Job, reason: FinishReason, error: str | None = None, *, wipe: bool = False
    ) -> None:
        """End a request once: free its slot, then tell its handle."""
        handle, row = job.handle, job.row
        del self.jobs[row.request_id]
        self._policy.leave(row.request_id, self._clock())
        self.step.release(row, wipe=wipe)
        try:
            rest = row.text.finish()
        except Exception as failure:  # a tokenizer that cannot decode what the model said
            rest, reason = "", FinishReason.ERROR
            error = error or f"the text cannot be decoded: {cause(failure)}"
        if rest:
            handle.push(rest)
        window = handle.window
        window.completion_tokens = len(row.output)
        window.ended = self._clock()
        window.finish_reason = str(reason)
        self.caches_bytes = self._held_bytes()
        handle.finish(
            Generation(
                request_id=row.request_id,
                text=row.text.text,
                token_ids=tuple(row.output),
                finish_reason=reason,
                stats=GenerationStats.of(
                    handle.request, window, self._policy.name, row.draft_error
                ),
                window=window,
                error=error,
            )
        )


def _weights_bytes(loaded: LoadedModel) -> int:
    arrays: Any = tree_flatten(loaded.target.model.parameters(), destination={})
    head = loaded.head.facts.nbytes if loaded.head is not None else 0
    return sum(int(array.nbytes) for array in arrays.values()) + head


def _members(quantum: Quantum) -> tuple[str, ...]:
    return quantum.request_ids if isinstance(quantum, Decode) else (quantum.request_id,)
