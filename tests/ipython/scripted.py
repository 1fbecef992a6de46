"""An engine that plays back scripted answers, and a shell to use it in."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.engine.request import (
    FinishReason,
    Generation,
    GenerationStats,
    Handle,
    Request,
)
from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.errors import EngineClosed, InvalidRequest


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
    """The request does not end, and a second interrupt comes."""
    endless: bool = False
    """The request goes on until it is cancelled, and then has all its pieces."""


class ScriptedHandle(Handle):
    """A handle whose waiting caller is interrupted at a known piece."""

    answer: Answer

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
    window = DecodeWindow(request.request_id, 0.0, finish_reason=str(finish), ended=1.0)
    window.prompt_tokens, window.completion_tokens = 7, len(pieces)
    return Generation(
        request_id=request.request_id,
        text="".join(pieces),
        token_ids=tuple(range(len(pieces))),
        finish_reason=finish,
        stats=GenerationStats.of(request, window, "serial"),
        window=window,
        error=error,
    )


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

    @property
    def closed(self) -> bool:
        return self.state != "running"

    def submit(self, prompt: Any, **options: Any) -> Handle:
        if self.closed:
            raise EngineClosed("the engine takes no requests: it was closed; load a model again")
        sampling = {k: v for k, v in options.items() if k not in ("raw", "system")}
        params = SamplingParams.of(sampling)
        self.asked.append((prompt, options))
        request = Request(
            request_id=f"req-{len(self.asked)}",
            prompt_ids=(1,),
            params=params,
            seed=0,
            mode=params.mode or GenerationMode(self.mode),
        )
        handle = ScriptedHandle(request, DecodeWindow(request.request_id, 0.0))
        handle.answer = self.answers.pop(0) if self.answers else Answer()
        answer = handle.answer
        if answer.endless:

            def end() -> None:
                assert handle.cancel_reason is not None
                handle.finish(generation(request, answer.pieces, handle.cancel_reason))

            handle.attach(end, lambda: None, lambda: None)
        elif answer.interrupted_after is None or answer.done_before:
            finish = FinishReason.ERROR if answer.error else answer.finish
            handle.finish(generation(request, answer.pieces, finish, answer.error))
            self.timeline.open(handle.result().window if not answer.error else handle.window)
        return handle

    def configure(self, *, mode: str) -> None:
        if mode == "mtp" and self.mode_reason:
            raise InvalidRequest(f"mode mtp cannot be had: {self.mode_reason}")
        self.mode = mode

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
            "scheduler": {"mode": "serial", "serial": {"open_requests": 0}},
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
