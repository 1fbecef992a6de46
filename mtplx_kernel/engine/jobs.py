"""The open requests on the owner thread: each one's row and handle, and what is told to callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from mtplx_kernel.decoding.params import GenerationMode
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import Outcome
from mtplx_kernel.decoding.text import TextStream
from mtplx_kernel.engine.request import FinishReason, Generation, Handle, Request, cause
from mtplx_kernel.engine.stats import GenerationStats
from mtplx_kernel.engine.timeline import Cycle
from mtplx_kernel.models.load import LoadedModel

AS_AR = "scheduler {name} decodes one token a row and step"


@dataclass(slots=True)
class Job:
    """A request on the owner thread.

    Attributes
    ----------
    admitted
        Whether its row has a slot.
    """

    handle: Handle
    row: Row
    admitted: bool = False


def make_row(request: Request, loaded: LoadedModel) -> Row:
    """The row of a request, before it has a slot."""
    end_ids = frozenset(request.params.stop_token_ids)
    if not request.params.ignore_eos:
        end_ids |= loaded.facts.end_ids
    return Row(
        request_id=request.request_id,
        ids=list(request.prompt_ids),
        params=request.params,
        draft_params=request.draft_params,
        constraint=None if request.compiled is None else request.compiled.start(),
        omit_bonus=request.omit_bonus,
        seed=request.seed,
        mode=request.mode,
        end_ids=end_ids,
        context_length=loaded.facts.context_length,
        text=TextStream(loaded.tokenizer, request.prompt_ids, request.params.stop),
    )


class CallbackFailed(Exception):
    """A caller's function raised; its request ends with this as the reason."""


class Jobs:
    """Open requests by id, in order of arrival.

    Parameters
    ----------
    clock
        Seconds of one monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._jobs

    def __getitem__(self, request_id: str) -> Job:
        return self._jobs[request_id]

    def row(self, request_id: str) -> Row | None:
        """The row of an open request; None if there is none of that id."""
        job = self._jobs.get(request_id)
        return None if job is None else job.row

    def open(self, handle: Handle, row: Row) -> Job:
        """Take a request in."""
        job = self._jobs[row.request_id] = Job(handle, row)
        return job

    def admit(self, job: Job, scheduler: str, rule: str, *, drafts: bool) -> None:
        """Note that a request starts, and under which mode.

        Parameters
        ----------
        scheduler, rule
            The scheduler mode and its policy.
        drafts
            Whether rows of that mode may draft; else the request runs in mode ar.
        """
        job.admitted = True
        window = job.handle.window
        window.scheduler_mode, window.scheduler_policy = scheduler, rule
        window.slot = job.row.slot
        window.admitted = window.prefill_started = self._clock()
        if not drafts and job.row.mode is GenerationMode.MTP:
            job.row.drafting = False
            window.generation_mode = str(GenerationMode.AR)
            window.mtp_disabled_reason = AS_AR.format(name=scheduler)

    def prefilled(self, job: Job) -> None:
        """Tell the caller how much of the prompt is in the caches.

        Raises
        ------
        CallbackFailed
            If the caller's function raised.
        """
        on_prefill, row = job.handle.request.hooks.on_prefill, job.row
        if on_prefill is not None:
            done = min(row.committed, row.prompt_length)
            _call("on_prefill", lambda: on_prefill(done, row.prompt_length))

    def decoded(self, job: Job, outcome: Outcome, at: float, rows: int) -> None:
        """Record a cycle, and deliver its tokens.

        Parameters
        ----------
        at, rows
            When it was committed, and how many rows its forward had.

        Raises
        ------
        CallbackFailed
            If a function of the caller raised.
        """
        handle, window, hooks = job.handle, job.handle.window, job.handle.request.hooks
        starts = bool(outcome.tokens) and window.first_token is None
        if starts:  # a reader that knows of the first token may ask how many came with it
            window.first_block = len(outcome.tokens)
            window.first_token = self._clock()
        drafted, accepted, drafter = outcome.drafted, outcome.accepted, outcome.drafter
        tokens = len(outcome.tokens) + outcome.end_token
        window.record_cycle(drafted, accepted)
        cycle = Cycle(at, drafted, accepted, tokens, drafter, rows)
        window.cycles.record(cycle, [token.id for token in outcome.tokens])
        window.completion_tokens += len(outcome.tokens)
        window.end_token = outcome.end_token
        for token in outcome.tokens:
            if token.text:
                handle.push(token.text)
        if starts and hooks.on_decode_start is not None:
            _call("on_decode_start", hooks.on_decode_start)
        for token in outcome.tokens:
            if hooks.on_logprob is not None and token.logprob is not None:
                _call("on_logprob", partial(hooks.on_logprob, token.logprob))
            if hooks.on_token is not None:
                _call("on_token", partial(hooks.on_token, token.id, token.text))

    def close(self, job: Job) -> None:
        """Let a request go; its handle is told by `finish`."""
        del self._jobs[job.row.request_id]

    def finish(self, job: Job, reason: FinishReason, error: str | None) -> None:
        """End a request's handle with what there is."""
        handle, row, window = job.handle, job.row, job.handle.window
        try:
            rest = row.text.finish()
        except Exception as failure:  # a tokenizer that cannot decode what the model said
            rest, reason = "", FinishReason.ERROR
            error = error or f"the text cannot be decoded: {cause(failure)}"
        if rest:
            handle.push(rest)
        if row.text.stopped and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP  # the rest of the bytes completed a stop string
        window.completion_tokens = len(row.output)
        window.draft_error = row.draft_error
        window.ended = self._clock()
        window.finish_reason = str(reason)
        handle.finish(
            Generation(
                request_id=row.request_id,
                text=row.text.text,
                token_ids=tuple(row.output),
                finish_reason=reason,
                stats=GenerationStats.of(window, row.seed),
                window=window,
                error=error,
                logprobs=None if row.params.logprobs is None else tuple(row.logprobs),
            )
        )

    def cancelled(self) -> list[tuple[Job, str | None]]:
        """The jobs whose callers say, when asked, that they are cancelled, or cannot say.

        Returns
        -------
        list of (job, error)
            The error is what a caller's function raised.
        """
        found: list[tuple[Job, str | None]] = []
        for job in self:
            asked = job.handle.request.hooks.cancelled
            if asked is None:
                continue
            try:
                if asked():
                    found.append((job, None))
            except BaseException as error:  # the caller's code ends its request only
                found.append((job, f"the cancelled callback raised {cause(error)}"))
        return found

    @property
    def polled(self) -> bool:
        """Whether some caller has to be asked if its request is cancelled."""
        return any(job.handle.request.hooks.cancelled is not None for job in self)


def _call(name: str, function: Callable[[], None]) -> None:
    try:
        function()
    except BaseException as error:  # the caller's code, even sys.exit(), ends its request only
        raise CallbackFailed(f"the {name} callback raised {cause(error)}") from error
