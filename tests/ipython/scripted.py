"""An engine that plays back scripted answers, and a shell to use it in."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.engine.request import FinishReason, Generation, Handle, Request
from mtplx_kernel.engine.stats import GenerationStats
from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.errors import EngineClosed, InvalidRequest, QueueFull
from mtplx_kernel.scheduling.options import SchedulerOptions


@dataclass
class Answer:
    """What the engine does with one request."""

    pieces: tuple[str, ...] = ("Hello", " there", ".")
    finish: FinishReason = FinishReason.STOP
    error: str | None = None
    interrupted_after: int | None = None
    """Send the process the interrupt signal before this piece."""
    done_before: bool = False
    """The request has ended when the interrupt comes; its text is still being shown."""
    stuck: bool = False
    """The request does not end, and where `interrupted_after` is given a second interrupt comes."""
    endless: bool = False
    """The request goes on until it is cancelled, and then has all its pieces."""
    interrupts: int = 0
    """Send the process so many interrupt signals once the caller has the request."""


class ScriptedHandle(Handle):
    """A handle whose waiting caller is interrupted at a known piece."""

    answer: Answer

    def when_done(self, tell: Callable[[Handle], None]) -> None:
        super().when_done(tell)
        for _ in range(self.answer.interrupts):
            signal.raise_signal(signal.SIGINT)

    def pieces(self, poll_s: float = 0.05) -> Iterator[str]:
        for n, piece in enumerate(self.answer.pieces):
            if n == self.answer.interrupted_after:
                signal.raise_signal(signal.SIGINT)
                if self.answer.stuck:
                    signal.raise_signal(signal.SIGINT)
            yield piece
            if self.cancel_reason:
                # One piece more arrives between the interrupt and the end of the request.
                pieces = self.answer.pieces[: n + 1]
                self.finish(generation(self.request, pieces, self.cancel_reason))
                return


def generation(
    request: Request, pieces: Sequence[str], finish: FinishReason, error: str | None = None
) -> Generation:
    window = DecodeWindow(
        request.request_id,
        0.0,
        generation_mode=str(request.mode),
        finish_reason=str(finish),
        ended=1.0,
    )
    window.prompt_tokens, window.completion_tokens = 7, len(pieces)
    return Generation(
        request_id=request.request_id,
        text="".join(pieces),
        token_ids=tuple(range(len(pieces))),
        finish_reason=finish,
        stats=GenerationStats.of(window, request.seed),
        window=window,
        error=error,
    )


def new_request(number: int = 1, params: SamplingParams | None = None) -> Request:
    params = params or SamplingParams()
    return Request(
        request_id=f"req-{number}",
        prompt_ids=(1,),
        params=params,
        seed=params.seed or 0,
        mode=params.mode or GenerationMode.MTP,
    )


def new_handle() -> Handle:
    """A handle of a request that waits."""
    return Handle(new_request(), DecodeWindow("req-1", 0.0))


def made(*pieces: str, finish: FinishReason = FinishReason.STOP) -> Generation:
    """A finished request with these pieces."""
    return generation(new_request(), pieces, finish)


@dataclass
class ScriptedEngine:
    """Keeps what it was asked, answers from `answers` (by default a greeting)."""

    name: str = "scripted"
    mode: str = "mtp"
    mode_reason: str | None = None
    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    closes: list[bool] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    state: str = "running"
    scheduler: str = "serial"
    settings: dict[str, Any] = field(default_factory=dict)
    room: int = 256
    """How many requests may be open; the oldest ends when one more comes."""
    open: list[ScriptedHandle] = field(default_factory=list)
    default_depth: int | None = None

    @property
    def closed(self) -> bool:
        return self.state != "running"

    def submit(self, prompt: Any, **options: Any) -> Handle:
        if self.closed:
            raise EngineClosed("the engine takes no requests: it was closed; load a model again")
        sampling = {k: v for k, v in options.items() if k not in ("raw", "system", "priority")}
        if options.get("priority", 1) == 0:
            raise InvalidRequest("priority must be a number from 0.01 to 100, not 0.0")
        if len(self.open) >= self.room:
            self.open.pop(0).cancel()
            raise QueueFull("the queue is full")
        params = SamplingParams.of(sampling)
        self.asked.append((prompt, options))
        params = replace(params, mode=params.mode or GenerationMode(self.mode))
        request = new_request(len(self.asked), params)
        handle = ScriptedHandle(request, DecodeWindow(request.request_id, 0.0))
        handle.answer = self.answers.pop(0) if self.answers else Answer()
        answer = handle.answer
        if answer.endless:

            def end() -> None:
                assert handle.cancel_reason is not None
                if not answer.stuck:
                    handle.finish(generation(request, answer.pieces, handle.cancel_reason))

            handle.attach(end, lambda: None, lambda: None)
            self.open.append(handle)
        elif answer.interrupted_after is None or answer.done_before:
            finish = FinishReason.ERROR if answer.error else answer.finish
            handle.finish(generation(request, answer.pieces, finish, answer.error))
            self.timeline.open(handle.result().window if not answer.error else handle.window)
        return handle

    def requests(self) -> list[Handle]:
        return [handle for handle in self.open if not handle.done]

    def set_default_depth(self, depth: int | None) -> None:
        self.default_depth = SamplingParams(depth=depth).depth

    def configure(
        self, *, mode: str | None = None, scheduler: str | None = None, **settings: Any
    ) -> None:
        if mode == "mtp" and self.mode_reason:
            raise InvalidRequest(f"mode mtp cannot be had: {self.mode_reason}")
        if scheduler is not None or settings:
            name = scheduler or self.scheduler
            SchedulerOptions.of(name, settings)
            self.scheduler, self.settings = name, settings
        self.mode = mode or self.mode

    def status(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "reason": None if self.state == "running" else f"it is {self.state}",
            "model": {
                "name": self.name,
                "path": None,
                "family": "llama",
                "parameters": 134_515_008,
                "precision": "float32",
                "context_length": 8192,
            },
            "device": "cpu",
            "blas": {
                "description": "reference BLAS, 1 thread",
                "reason": "chosen by MTPLX_KERNEL_BLAS=stock; products take 3 times as long",
            },
            "mode": self.mode,
            "mode_reason": self.mode_reason,
            "drafters": ["lookup"],
            "caches": {"rollback": True, "reason": None},
            "scheduler": {
                "mode": self.scheduler,
                "settings": asdict(SchedulerOptions.of(self.scheduler, self.settings)),
                self.scheduler: {"open_requests": 0},
            },
            "prefix_cache": {},
            "queue": {"waiting": 0, "limit": 256},
            "running": 0,
            "memory_bytes": 550_000_000,
        }

    def close(self, *, drain: bool = False) -> None:
        self.closes.append(drain)
        self.state = "closed"


def new_shell() -> InteractiveShell:
    """A plain shell of its own, without history on disk."""
    from traitlets.config import Config

    return InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
