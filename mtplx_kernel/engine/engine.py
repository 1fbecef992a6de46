"""The engine's public face: load a model, submit requests from any thread, close it."""

from __future__ import annotations

import os
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import anyio
import anyio.to_thread

from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.defaults import Defaults
from mtplx_kernel.engine.ledger import Ledger
from mtplx_kernel.engine.memory import check_memory_gb
from mtplx_kernel.engine.opened import Opened
from mtplx_kernel.engine.owner import Owner
from mtplx_kernel.engine.pieces import TextPieces
from mtplx_kernel.engine.prompts import Prompt, PromptEncoder
from mtplx_kernel.engine.request import FinishReason, Generation, Handle, Request, check_timeout
from mtplx_kernel.engine.status import describe
from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.errors import InvalidRequest, MTPLXError, QueueFull, RequestTimeout
from mtplx_kernel.models import catalog
from mtplx_kernel.models.head import check_choice
from mtplx_kernel.scheduling.modes import check_mode

QUEUE_LIMIT = 256
TokenCallback = Callable[[int, str], None]


class Engine:
    """A loaded model with its queue. Make one with `mtplx_kernel.load`.

    Every method may be called from any thread. Options of a request are those of
    `mtplx_kernel.SamplingParams`, and besides: `raw` (no chat template), `system` (a system
    message) and `on_token` (called on the engine's thread with each id and its text).
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        head: str | os.PathLike[str] = "auto",
        mode: str | None = None,
        scheduler: str = "serial",
        queue_limit: int = QUEUE_LIMIT,
        memory_gb: float | None = None,
        progress: bool = True,
    ) -> None:
        if isinstance(queue_limit, bool) or not isinstance(queue_limit, int) or queue_limit < 1:
            raise InvalidRequest(f"queue_limit must be at least 1, not {queue_limit!r}")
        check_memory_gb(memory_gb)
        choice = check_choice(head)
        self.scheduler = str(check_mode(scheduler))
        wanted = SamplingParams(mode=mode).mode  # type: ignore[arg-type]
        self.timeline = Timeline()
        self._ledger = Ledger(queue_limit)
        source = catalog.resolve(os.fspath(name), progress=progress)
        self._owner = Owner(source, choice, self.scheduler, self._ledger.bury)
        # An engine that nobody holds lets its model go; open requests hold theirs.
        weakref.finalize(self, self._owner.request_stop).atexit = False
        self.facts, self.tokenizer, self._fit, memory = self._owner.load()
        self._memory = memory.within(memory_gb)
        try:
            self._encoder = PromptEncoder(self.tokenizer, self.facts)
            self._defaults = Defaults(
                self.name, self._fit.rollback_reason, wanted, self._fit.tuned_depth
            )
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The model's name, as it was asked for."""
        return self.facts.name

    @property
    def mode(self) -> str:
        """The generation mode of requests that name none."""
        return str(self._defaults.mode)

    @property
    def mode_reason(self) -> str | None:
        """Why mode mtp is not to be had; None where it is."""
        return self._defaults.mode_reason

    @property
    def default_depth(self) -> int | None:
        """Drafts a cycle of requests that name no depth; None leaves it to the drafters."""
        return self._defaults.depth

    def set_default_depth(self, depth: int | None, reason: str | None = None) -> None:
        """Change the depth of requests to come that name none; status gives the reason.

        Raises
        ------
        InvalidRequest
            If it is not 0 to 16, or None.
        """
        self._ledger.check_open()
        self._defaults.set_depth(depth, reason)

    @property
    def measured_key(self) -> str:
        """What this model's measurements on this machine are kept under."""
        return self._fit.key

    def inspect(self, ids: Sequence[int], top: int = 5) -> list[tuple[int, float]]:
        """What the model would say next, computed by a forward of its own.

        Parameters
        ----------
        ids
            A text as token ids, at least one.
        top
            How many candidates to return.

        Returns
        -------
        list of (id, log-probability), the likeliest first, at temperature 1

        Raises
        ------
        InvalidRequest
            If `ids` is no prompt for this model, or `top` no count.
        """
        self._ledger.check_open()
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise InvalidRequest(f"ids must be a list of token ids, not {type(ids).__name__}")
        if not isinstance(top, int) or isinstance(top, bool) or top < 1:
            raise InvalidRequest(f"top must be a whole number, 1 or more, not {top!r}")
        checked = self._encoder.encode(list(ids))
        return self._owner.ask(lambda runner: runner.inspect(checked, top))

    @property
    def closed(self) -> bool:
        """Whether the engine takes no more requests."""
        return self._ledger.state != "running"

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Any
    ) -> Generation:
        """Run one request to its end.

        Parameters
        ----------
        prompt
            Text (one user message, unless `raw`), messages, or token ids.
        timeout
            Seconds; a request that takes longer is cancelled.
        **options
            See the class.

        Raises
        ------
        InvalidRequest, QueueFull, EngineClosed
            Before any work.
        RequestFailed, RequestTimeout
            If it ends with an error, or not in time.
        """
        check_timeout(timeout)
        self._owner.refuse_waiting()
        with Opened() as opened:
            try:
                return self._submit(prompt, opened, **options).result(timeout)
            except RequestTimeout:
                opened.cancel(FinishReason.CANCELLED)
                raise RequestTimeout(f"cancelled: no result after {timeout:g} s") from None

    def stream(self, prompt: Prompt, **options: Any) -> TextPieces:
        """Run one request and yield its text as it comes.

        Closing the iterator, or letting go of it, cancels the request.

        Raises
        ------
        InvalidRequest, QueueFull, EngineClosed
            At the call, before any work.
        RequestFailed
            While iterating, after the text that came before the error.
        """
        self._owner.refuse_waiting()
        with Opened() as opened:
            return TextPieces(self._submit(prompt, opened, **options))

    async def agenerate(self, prompt: Prompt, **options: Any) -> Generation:
        """Run one request without blocking the event loop; cancelling the task cancels it."""
        with Opened(FinishReason.CANCELLED) as opened:
            handle = self._submit(prompt, opened, **options)
            # One thread a waiting request: the queue is bounded, so these are too.
            limiter = anyio.CapacityLimiter(1)
            return await anyio.to_thread.run_sync(
                handle.result, limiter=limiter, abandon_on_cancel=True
            )

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Any
    ) -> list[Generation | MTPLXError]:
        """Run several requests, each ending on its own.

        Parameters
        ----------
        prompts
            As for `generate`; there may be more than the queue holds.

        Returns
        -------
        list
            In order: each prompt's result, or the error that ended or refused it.

        Raises
        ------
        InvalidRequest, EngineClosed
            If the options or the engine rule all of them out.
        """
        if isinstance(prompts, str):
            raise InvalidRequest("prompts must be a list of prompts; generate takes a single one")
        self._ledger.check_open()
        self._owner.refuse_waiting()
        self._params(_sampling(options))
        with Opened() as opened:
            entries = [self._submit_when_room(prompt, options, opened) for prompt in prompts]
            return [_outcome(entry) for entry in entries]

    def submit(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        on_token: TokenCallback | None = None,
        **options: Any,
    ) -> Handle:
        """Queue a request and return at once.

        Raises
        ------
        InvalidRequest
            If the prompt or an option is wrong, or the caches would never fit in the memory.
        QueueFull
            If as many requests wait as may.
        EngineClosed
            If the engine was closed or died.
        """
        with Opened() as opened:
            return self._submit(
                prompt, opened, raw=raw, system=system, on_token=on_token, **options
            )

    def configure(self, *, mode: str | None = None, scheduler: str | None = None) -> None:
        """Change defaults of requests to come; what runs is not touched.

        Parameters
        ----------
        mode
            The generation mode of requests that name none: "mtp" or "ar".
        scheduler
            The scheduler mode.

        Raises
        ------
        InvalidRequest
            If one of them is unknown or cannot be had here; then nothing is changed.
        """
        self._ledger.check_open()
        if scheduler is not None:
            check_mode(scheduler)
        if mode is not None:
            self._defaults.set_mode(mode)

    def status(self) -> dict[str, Any]:
        """What is loaded and what is in force, as plain data."""
        waiting, running = self._ledger.counts()
        state = self._ledger.state
        runner = None if state == "dead" else self._owner.runner
        return {
            "state": state,
            "reason": self._ledger.reason,
            **describe(self.facts, runner, self._fit.rollback_reason),
            **self._memory.status(),
            "depth": self._defaults.depth_status(),
            "mode": self.mode,
            "mode_reason": self.mode_reason,
            "queue": {"waiting": waiting, "limit": self._ledger.limit},
            "running": running,
        }

    def close(self, *, drain: bool = False) -> None:
        """Let the model go. Closing twice does nothing.

        Parameters
        ----------
        drain
            Finish the requests that were submitted; otherwise they end as cancelled, with the
            text that they have.
        """
        self._ledger.shut("closed", "it was closed")
        self._owner.stop(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._ledger.state
        return f"<Engine {self.name}: mode {self.mode}, scheduler {self.scheduler}, {state}>"

    def _submit(
        self,
        prompt: Prompt,
        opened: Opened,
        /,
        *,
        raw: bool = False,
        system: str | None = None,
        on_token: TokenCallback | None = None,
        **options: Any,
    ) -> Handle:
        """Submit, with the handle in `opened` before the request can run."""
        self._ledger.check_open()
        if on_token is not None and not callable(on_token):
            raise InvalidRequest(f"on_token must be a function of id and text, not {on_token!r}")
        params = self._params(options)
        ids = self._encoder.encode(prompt, raw=raw, system=system)
        longest = min(len(ids) + params.max_tokens, self.facts.context_length)
        self._memory.admit(len(ids), longest, self._defaults.checked(params.mode))

        def make(request_id: str) -> Handle:
            handle = self._handle(request_id, ids, params, on_token)
            opened.append(handle)
            self.timeline.open(handle.window)
            return handle

        return self._ledger.open(
            make, lambda handle: self._owner.post(lambda runner: runner.submit(handle))
        )

    def _submit_when_room(
        self, prompt: Prompt, options: dict[str, Any], opened: Opened
    ) -> Handle | MTPLXError:
        """Submit; where the queue is full, wait for the batch's own earlier requests."""
        while True:
            try:
                return self._submit(prompt, opened, **options)
            except QueueFull as error:
                oldest = next((handle for handle in opened if not handle.done), None)
                if oldest is None:
                    return error
                oldest.wait()
            except MTPLXError as error:
                return error

    def _params(self, options: dict[str, Any]) -> SamplingParams:
        params = SamplingParams.of(options)
        self._defaults.checked(params.mode)
        return self._defaults.applied(params)

    def _handle(
        self,
        request_id: str,
        ids: tuple[int, ...],
        params: SamplingParams,
        on_token: TokenCallback | None,
    ) -> Handle:
        request = Request(
            request_id=request_id,
            prompt_ids=ids,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            mode=self._defaults.checked(params.mode),
            on_token=on_token,
        )
        window = DecodeWindow(request_id, time.perf_counter(), prompt_tokens=len(ids))
        handle = Handle(request, window)
        handle.attach(
            wake=lambda: self._owner.post(lambda runner: runner.cancel(handle)),
            forget=lambda: self._ledger.forget(request_id),
            refuse_waiting=self._owner.refuse_waiting,
        )
        return handle


def _sampling(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in ("raw", "system", "on_token")}


def _outcome(entry: Handle | MTPLXError) -> Generation | MTPLXError:
    if isinstance(entry, MTPLXError):
        return entry
    try:
        return entry.result()
    except MTPLXError as error:
        return error
