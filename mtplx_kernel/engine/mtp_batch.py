"""Batched decoding for programs: jobs in, futures out, over an engine that forms cohorts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.intake import Ask
from mtplx_kernel.engine.opened import Opened
from mtplx_kernel.engine.request import FinishReason, Generation, Handle, Hooks
from mtplx_kernel.engine.stats import COHORT_MODES
from mtplx_kernel.errors import InvalidRequest, MTPLXError, RequestTimeout

if TYPE_CHECKING:
    from mtplx_kernel.caching.prefix import PrefixStore

_cohorts = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLimits:
    """What ends a job beside its own options.

    Attributes
    ----------
    max_total_tokens
        Of prompt and answer together.
    timeout_s
        From the submit; a job that takes longer ends as cancelled, with RequestTimeout.
    """

    max_total_tokens: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        total, seconds = self.max_total_tokens, self.timeout_s
        if total is not None and (isinstance(total, bool) or total < 2):
            raise InvalidRequest(f"max_total_tokens must be at least 2, or None, not {total!r}")
        if seconds is not None and (isinstance(seconds, bool) or not seconds > 0):
            raise InvalidRequest(f"timeout_s must be above 0, or None, not {seconds!r}")


class JobFuture(Future[Generation]):
    """A future that the engine's own thread refuses to wait for: it would wait for itself.

    Attributes
    ----------
    refuse_waiting
        Raises InvalidRequest on that thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refuse_waiting: Callable[[], None] = lambda: None

    def result(self, timeout: float | None = None) -> Generation:
        """As of any future, except on the engine's thread."""
        if not self.done():
            self.refuse_waiting()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of any future, except on the engine's thread."""
        if not self.done():
            self.refuse_waiting()
        return super().exception(timeout)


@dataclass(eq=False, kw_only=True)
class MTPBatchJob:
    """One request of a batching program.

    Attributes
    ----------
    request_id
        The program's own name for it; results carry it.
    prompt_ids, max_tokens, seed, stop_token_ids
        What to decode; seed None draws one.
    sampler
        How tokens are chosen. Its own max_tokens, seed and stop ids give way to the job's.
    draft_sampler
        How the head's drafts are drawn; None as the tokens.
    token_callback
        Gets each token's id and text, on the engine's thread.
    prefill_callback
        Gets how many prompt tokens are in the caches, and how many there are.
    compatibility_key
        Jobs decode together only where it is equal, whatever else they have in common.
    generation_limits
        What else ends it.
    solo_runner
        Wraps the job's run where nobody can join it, in a closed cohort of its own: gets the run,
        must call it. With refills (the default) anybody may join, and it is not used.
    cancel_event
        Set it to cancel, at any stage.
    cancel_error
        What the future raises after a cancel; None gives the partial result.
    request_observability
        A dictionary that receives the stats at the end.
    omit_speculative_bonus
        Leaves the token after a full accept for the next cycle.
    session_id
        Of the caller's session; it is told back in the stats.
    session_restore, session_commit
        The prefix cache to read from and to keep to; None bypasses it.
    future
        Gets the `Generation`, or the error.
    """

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int = 256
    sampler: SamplingParams = field(default_factory=SamplingParams)
    draft_sampler: SamplingParams | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    token_callback: Callable[[int, str], None] | None = None
    prefill_callback: Callable[[int, int], None] | None = None
    compatibility_key: str = ""
    generation_limits: GenerationLimits | None = None
    solo_runner: Callable[[Callable[[], Mapping[str, Any]]], object] | None = None
    cancel_event: threading.Event = field(default_factory=threading.Event)
    cancel_error: BaseException | None = None
    request_observability: dict[str, Any] | None = None
    omit_speculative_bonus: bool = False
    session_id: str | None = None
    session_restore: PrefixStore | None = None
    session_commit: PrefixStore | None = None
    future: JobFuture = field(default_factory=lambda: JobFuture())
    decode_started: float | None = None

    def emit_token(self, token: int, text: str) -> None:
        """Pass a token on to the caller (engine's thread)."""
        if self.token_callback is not None:
            self.token_callback(token, text)

    def mark_decode_started(self) -> None:
        """Note when the first token came, on `time.perf_counter()` (engine's thread)."""
        if self.decode_started is None:
            self.decode_started = time.perf_counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPBatchRequest:
    """One row of a closed cohort: what to decode and who is told; see `MTPBatchJob`."""

    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    on_token: Callable[[int, str], None] | None = None
    on_decode_start: Callable[[], None] | None = None


class MTPBatchGenerationService:
    """Submits jobs to an engine in mode mtp_batch (or mtp_cohort_experimental).

    Cohorts are formed by the engine: jobs whose keys are equal decode together, as many as its
    width, sealed when full or after its wait. Any thread may use it.

    Parameters
    ----------
    engine
        In one of those modes, now and at each submit.

    Raises
    ------
    InvalidRequest
        If the engine is in another mode.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._check_mode()

    def submit(self, job: MTPBatchJob) -> JobFuture:
        """Queue a job; its future gets the result as soon as its row ends.

        Raises
        ------
        InvalidRequest, QueueFull, EngineClosed
            Before any work.
        """
        self._check_mode()
        _check(job)
        ids, params = self._engine.intake.encoder.encode(job.prompt_ids), self._params(job)
        hooks = Hooks(
            on_token=job.emit_token,
            on_prefill=job.prefill_callback,
            on_decode_start=job.mark_decode_started,
            cancelled=_canceller(job),
            solo=job.solo_runner,
            restore=job.session_restore,
            commit=job.session_commit,
        )
        ask = Ask(
            hooks=hooks,
            draft_params=job.draft_sampler,
            omit_bonus=job.omit_speculative_bonus,
            key=job.compatibility_key,
        )
        with Opened() as opened:
            handle = self._engine.intake.open(ids, params, ask, opened)
            job.future.refuse_waiting = self._engine.intake.refuse_waiting
            handle.when_done(lambda handle: _settle(job, handle))
        return job.future

    def generate_mtp_batch(
        self, requests: Sequence[MTPBatchRequest], lane: int | None = None
    ) -> list[Generation | MTPLXError]:
        """Decode some requests as one closed cohort, and wait for all of them.

        Parameters
        ----------
        requests
            With equal keys, no more than the lane is wide.
        lane
            Most requests that there may be; None takes as many as the engine's width.

        Returns
        -------
        list
            In order: each request's result, or the error that ended it.

        Raises
        ------
        InvalidRequest, QueueFull, EngineClosed
            Before any work.
        """
        self._check_mode()
        self._engine.intake.refuse_waiting()
        width = self.snapshot()["width"]
        most = width if lane is None else min(lane, width)
        if not 1 <= len(requests) <= most:
            raise InvalidRequest(f"a cohort has 1 to {most} requests, not {len(requests)}")
        entries = [
            (
                self._engine.intake.encoder.encode(r.prompt_ids),
                self._engine.intake.applied(r.params),
            )
            for r in requests
        ]
        if len({_kind(params) for _, params in entries}) > 1:
            raise InvalidRequest(
                "the requests of a cohort must agree in mode, acceptance, and whether they sample"
            )
        name = f"closed-{next(_cohorts)}"
        with Opened() as opened:
            for (ids, params), request in zip(entries, requests, strict=True):
                hooks = Hooks(on_token=request.on_token, on_decode_start=request.on_decode_start)
                ask = Ask(hooks=hooks, cohort=name, members=len(requests))
                self._engine.intake.open(ids, params, ask, opened)
            return [_outcome(handle) for handle in opened]

    def snapshot(self) -> dict[str, Any]:
        """The telemetry of the mode in force, as plain data."""
        scheduler = self._engine.status()["scheduler"]
        block: dict[str, Any] = scheduler.get(scheduler["mode"], {})
        return block

    def _params(self, job: MTPBatchJob) -> SamplingParams:
        most = job.max_tokens
        limits = job.generation_limits
        if limits is not None and limits.max_total_tokens is not None:
            most = min(most, limits.max_total_tokens - len(job.prompt_ids))
            if most < 1:
                raise InvalidRequest(
                    f"the prompt has {len(job.prompt_ids)} tokens, and max_total_tokens is "
                    f"{limits.max_total_tokens}: nothing is left for an answer"
                )
        stops = tuple(dict.fromkeys((*job.sampler.stop_token_ids, *job.stop_token_ids)))
        seed = job.sampler.seed if job.seed is None else job.seed
        return self._engine.intake.applied(
            replace(job.sampler, max_tokens=most, seed=seed, stop_token_ids=stops)
        )

    def _check_mode(self) -> None:
        scheduler = self._engine.scheduler
        if scheduler not in COHORT_MODES:
            raise InvalidRequest(
                f"the engine's scheduler is {scheduler}, and cohorts need one of "
                f"{', '.join(COHORT_MODES)}: engine.configure(scheduler='mtp_batch')"
            )


def _check(job: MTPBatchJob) -> None:
    """Refuse what would fail later, on the engine's thread."""
    if job.future.done():
        raise InvalidRequest(f"job {job.request_id!r} has ended: submit a new one")
    if not isinstance(job.cancel_event, threading.Event):
        raise InvalidRequest(f"cancel_event must be a threading.Event, not {job.cancel_event!r}")
    seen = job.request_observability
    if seen is not None and type(seen) is not dict:
        raise InvalidRequest(f"request_observability must be a dict, or None, not {seen!r}")
    if job.cancel_error is not None and not isinstance(job.cancel_error, BaseException):
        raise InvalidRequest(f"cancel_error must be an exception, or None: {job.cancel_error!r}")
    for name in ("token_callback", "prefill_callback", "solo_runner"):
        call = getattr(job, name)
        if call is not None and not callable(call):
            raise InvalidRequest(f"{name} must be a function, or None, not {call!r}")
    for name in ("session_restore", "session_commit"):
        store = getattr(job, name)
        if store is not None and not callable(getattr(store, "find", None)):
            raise InvalidRequest(f"{name} must be a prefix store, or None, not {store!r}")


def _canceller(job: MTPBatchJob) -> Callable[[], bool]:
    limits = job.generation_limits
    seconds = None if limits is None else limits.timeout_s
    end = None if seconds is None else time.perf_counter() + seconds

    def cancelled() -> bool:
        if end is not None and time.perf_counter() >= end and not job.cancel_event.is_set():
            job.cancel_error = RequestTimeout(f"cancelled: no result after {seconds:g} s")
            job.cancel_event.set()
        return job.cancel_event.is_set() or job.future.cancelled()

    return cancelled


def _settle(job: MTPBatchJob, handle: Handle) -> None:
    """Give the job's future what its request came to (owner thread)."""
    outcome = _outcome(handle)
    ended = getattr(outcome, "generation", outcome)
    if isinstance(ended, Generation) and job.request_observability is not None:
        session = {} if job.session_id is None else {"session_id": job.session_id}
        job.request_observability |= {
            **ended.stats.as_dict(),
            "request_id": job.request_id,
            **session,
        }
    if isinstance(outcome, Generation):
        outcome = replace(outcome, request_id=job.request_id)
    try:
        if isinstance(outcome, MTPLXError):
            job.future.set_exception(outcome)
        elif outcome.finish_reason is FinishReason.CANCELLED and job.cancel_error is not None:
            job.future.set_exception(job.cancel_error)
        else:
            job.future.set_result(outcome)
    except InvalidStateError:  # its owner cancelled the future: nobody waits for it
        return


def _outcome(handle: Handle) -> Generation | MTPLXError:
    try:
        return handle.result()
    except MTPLXError as error:
        return error


def _kind(params: SamplingParams) -> tuple[Any, ...]:
    return params.mode, params.acceptance, params.temperature == 0
