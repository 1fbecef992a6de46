"""The engine's public face: load a model, submit requests from any thread, close it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread

from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.engine.constraints import Constraints
from mtplx_kernel.engine.defaults import Defaults
from mtplx_kernel.engine.forking import WIDEST, ForkExecutor
from mtplx_kernel.engine.intake import Intake
from mtplx_kernel.engine.ledger import Ledger
from mtplx_kernel.engine.memory import check_memory_gb, check_prefix_mb
from mtplx_kernel.engine.opened import Opened
from mtplx_kernel.engine.owner import Owner
from mtplx_kernel.engine.pieces import TextPieces
from mtplx_kernel.engine.prompts import Prompt, PromptEncoder
from mtplx_kernel.engine.request import FinishReason, Generation, Handle, check_timeout
from mtplx_kernel.engine.runner import Runner
from mtplx_kernel.engine.status import describe
from mtplx_kernel.engine.timeline import Timeline
from mtplx_kernel.errors import InvalidRequest, MTPLXError, RequestTimeout
from mtplx_kernel.models import catalog
from mtplx_kernel.models.head import check_choice
from mtplx_kernel.scheduling.hyper import HyperPolicy, HyperWidths
from mtplx_kernel.scheduling.options import SchedulerOptions

if TYPE_CHECKING:
    from mtplx_kernel.server.thread import Endpoint

QUEUE_LIMIT = 256
PREFIX_MB = 256.0


class Engine:
    """A loaded model with its queue. Make one with `mtplx_kernel.load`.

    Every method may be called from any thread. Options of a request are those of
    `mtplx_kernel.SamplingParams`, and besides: `raw` (no chat template), `system` (a system
    message), `tools` (functions that the chat template is to tell of), `on_token` (called on the
    engine's thread with each id and its text), `on_logprob` (called right before it with a
    `TokenLogprob`, where `logprobs` asks for them), `priority` (its share where requests take
    turns, 1 as others), `prefix_cache` (False neither reads nor keeps what prompts have in common)
    and `hyper` (True lets it wait for the end of every such request before it, whatever the
    scheduler, and where cohorts are formed it is in none with others).
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
        prefix_cache_mb: float = PREFIX_MB,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        if isinstance(queue_limit, bool) or not isinstance(queue_limit, int) or queue_limit < 1:
            raise InvalidRequest(f"queue_limit must be at least 1, not {queue_limit!r}")
        check_memory_gb(memory_gb)
        check_prefix_mb(prefix_cache_mb)
        choice = check_choice(head)
        SchedulerOptions.of(scheduler, settings)
        wanted = SamplingParams(mode=mode).mode  # type: ignore[arg-type]
        self.timeline = Timeline()
        self._ledger = Ledger(queue_limit)
        self._scheduler = str(scheduler)
        source = catalog.resolve(os.fspath(name), progress=progress)
        make_runner = partial(
            Runner,
            scheduler=self._scheduler,
            settings=settings,
            timeline=self.timeline,
            memory_gb=memory_gb,
            prefix_mb=prefix_cache_mb,
        )
        self._owner = Owner(source, choice, make_runner, self._ledger.bury, progress)
        self.facts, self.tokenizer, self._fit, self._memory = self._owner.load()
        try:
            self._defaults = Defaults(
                self.name, self._fit.rollback_reason, wanted, self._fit.tuned_depth
            )
            self.intake = Intake(
                self.facts,
                PromptEncoder(self.tokenizer, self.facts),
                Constraints(self.tokenizer, self.facts),
                self._memory,
                self._defaults,
                self._ledger,
                self.timeline,
                self._owner,
            )
            # Who holds it is the engine and its open requests: without them the model is let go.
            weakref.finalize(self.intake, self._owner.request_stop).atexit = False
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
        checked = self.intake.encoder.encode(list(ids))
        return self._owner.ask(lambda runner: runner.loaded.target.inspect(checked, top))

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
                return self.intake.submit(prompt, opened, **options).result(timeout)
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
            return TextPieces(self.intake.submit(prompt, opened, **options))

    async def agenerate(self, prompt: Prompt, **options: Any) -> Generation:
        """Run one request without blocking the event loop; cancelling the task cancels it."""
        with Opened(FinishReason.CANCELLED) as opened:
            handle = self.intake.submit(prompt, opened, **options)
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
        self.intake.params(options)
        with Opened() as opened:
            entries = [self.intake.submit_when_room(prompt, options, opened) for prompt in prompts]
            return [_outcome(entry) for entry in entries]

    def submit(self, prompt: Prompt, **options: Any) -> Handle:
        """Queue a request and return at once.

        Raises
        ------
        InvalidRequest
            If the prompt or an option is wrong, or the caches would never fit in the memory.
        QueueFull, EngineClosed
            If as many requests wait as may, or the engine was closed or died.
        """
        with Opened() as opened:
            return self.intake.submit(prompt, opened, **options)

    def requests(self) -> list[Handle]:
        """The requests that wait or run, oldest first, whoever submitted them."""
        return self._ledger.handles()

    @property
    def scheduler(self) -> str:
        """The scheduler mode of requests to come."""
        return self._scheduler

    def configure(
        self, *, mode: str | None = None, scheduler: str | None = None, **settings: Any
    ) -> None:
        """Change what holds for requests to come; what runs finishes as it began.

        Parameters
        ----------
        mode
            The generation mode of requests that name none: "mtp" or "ar".
        scheduler
            The scheduler mode; None keeps the one in force. Requests that wait move to it.
        **settings
            Of the scheduler mode: see `mtplx_kernel.scheduling.options.SchedulerOptions`. Those
            that are not named keep their value where the mode stays, else take their default.

        Raises
        ------
        InvalidRequest
            If one of them is unknown or cannot be had here; then nothing is changed.
        """
        self._ledger.check_open()
        if mode is not None:
            self._defaults.checked(SamplingParams(mode=mode).mode)  # type: ignore[arg-type]
        if scheduler is not None or settings:
            self._owner.ask(lambda runner: self._switch(runner, scheduler, settings), long=True)
        if mode is not None:
            self._defaults.set_mode(mode)

    def _switch(self, runner: Runner, scheduler: str | None, settings: dict[str, Any]) -> None:
        """Switch on the owner thread, so that the name is right whoever is interrupted."""
        self._scheduler = runner.modes.switch(scheduler, settings)

    @property
    def gate(self) -> HyperWidths:
        """What can be done to the gate of mode hyper, such as installing a width executor.

        Raises
        ------
        InvalidRequest
            If the engine is in another mode.
        """
        policy = self._owner.ask(lambda runner: runner.modes.relay.current)
        if not isinstance(policy, HyperPolicy):
            raise InvalidRequest(
                f"the engine's scheduler is {policy.name}, and only hyper has a gate: "
                "engine.configure(scheduler='hyper')"
            )
        return HyperWidths(policy.gate)

    def fork_executor(self, width: int | None = None) -> ForkExecutor:
        """What makes mode hyper verify several continuations of a request at once.

        It is used once it is installed: `engine.gate.install_width_executor(...)`.

        Parameters
        ----------
        width
            How many, 2 to 4; None lets each cycle choose what promises most.
        """
        if width is not None and (isinstance(width, bool) or width not in range(2, WIDEST + 1)):
            raise InvalidRequest(f"width must be 2 to {WIDEST}, or None, not {width!r}")
        return self._owner.ask(lambda runner: runner.fork_executor(width), long=True)

    def serve(self, *, port: int = 0, **options: Any) -> Endpoint:
        """Serve it to OpenAI's clients; the options: `mtplx_kernel.server.thread.serve`."""
        from mtplx_kernel.server.thread import serve

        return serve(lambda: self, port=port, **options)

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


def _outcome(entry: Handle | MTPLXError) -> Generation | MTPLXError:
    if isinstance(entry, MTPLXError):
        return entry
    try:
        return entry.result()
    except MTPLXError as error:
        return error
