"""A request from submit to result: what is asked, the handle to wait on, and what comes back."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.engine.slices import SLICE_S, wait_for
from mtplx_kernel.engine.timeline import DecodeWindow
from mtplx_kernel.errors import InvalidRequest, RequestFailed, RequestTimeout


class FinishReason(StrEnum):
    """Why a request ended; it ends exactly once."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine runs: ids in, options, and where tokens are reported."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    mode: GenerationMode
    on_token: Callable[[int, str], None] | None = None
    """Called on the owner thread with each token id and the text it released (maybe empty)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStats:
    """What a request cost, the same record for every mode; what does not apply is None.

    Seconds are wall-clock. `decode_tok_s` runs from the first token to the end and leaves
    out the tokens that came with it; `end_to_end_tok_s` counts all tokens from submit to end.
    """

    scheduler_mode: str
    generation_mode: str
    prompt_tokens: int
    completion_tokens: int
    seed: int
    queue_wait_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    decode_elapsed_s: float | None = None
    decode_tok_s: float | None = None
    end_to_end_tok_s: float | None = None
    verify_calls: int | None = None
    drafted_by_depth: tuple[int, ...] | None = None
    accepted_by_depth: tuple[int, ...] | None = None
    tokens_per_cycle: float | None = None
    draft_error: str | None = None
    """The last failure of a drafter: its cycle ran without drafts; after a head's, the rest."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that apply, as plain data."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}

    @classmethod
    def of(
        cls,
        request: Request,
        window: DecodeWindow,
        scheduler_mode: str,
        draft_error: str | None = None,
    ) -> GenerationStats:
        """Derive the stats from a request's decode window."""
        end = window.ended if window.ended is not None else time.perf_counter()
        first, n = window.first_token, window.completion_tokens
        decode_s = None if first is None else end - first
        mtp = request.mode is GenerationMode.MTP
        return cls(
            scheduler_mode=scheduler_mode,
            generation_mode=str(request.mode),
            prompt_tokens=window.prompt_tokens,
            completion_tokens=n,
            seed=request.seed,
            queue_wait_s=_between(window.submitted, window.admitted),
            prefill_s=_between(window.prefill_started, first),
            ttft_s=_between(window.submitted, first),
            decode_elapsed_s=decode_s,
            decode_tok_s=window.decode_tok_s,
            end_to_end_tok_s=n / (end - window.submitted) if n else None,
            verify_calls=window.verify_calls or None,
            drafted_by_depth=tuple(window.drafted_by_depth) if mtp else None,
            accepted_by_depth=tuple(window.accepted_by_depth) if mtp else None,
            tokens_per_cycle=window.tokens_per_cycle,
            draft_error=draft_error,
        )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A finished request.

    Attributes
    ----------
    text
        The decoded text, without a stop string or an end token.
    token_ids
        The ids behind it (and, where a stop string cut the text, up to the one that completed it).
    finish_reason
        Why it ended; `error` holds the cause if that was an error.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: GenerationStats
    window: DecodeWindow
    error: str | None = None

    def __repr__(self) -> str:
        s = self.stats
        parts = [f"{s.completion_tokens} tokens"]
        if s.decode_tok_s is not None:
            parts.append(f"{s.decode_tok_s:.1f} tok/s")
        if s.ttft_s is not None:
            parts.append(f"first after {s.ttft_s:.2f} s")
        parts.append(f"mode {s.generation_mode}")
        if s.generation_mode == GenerationMode.MTP and s.tokens_per_cycle is not None:
            parts.append(f"{s.tokens_per_cycle:.2f} tokens a cycle")
        if self.error:
            parts.append(self.error)
        return f"<{self.finish_reason}: {', '.join(parts)}>"


class Handle:
    """The caller's end of a request: iterate it for text, ask it for the result, cancel it.

    Safe to use from any thread. Pieces are delivered to one consumer.
    """

    def __init__(self, request: Request, window: DecodeWindow) -> None:
        self.request = request
        self.window = window
        self._pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._generation: Generation | None = None
        self._failure: Exception | None = None
        self._cancel: FinishReason | None = None
        self.attach(_nothing, _nothing, _nothing)

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        return self._done.is_set()

    @property
    def cancel_reason(self) -> FinishReason | None:
        """The reason to end with, once a cancel was asked for."""
        return self._cancel

    def cancel(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Ask the request to end before its next cycle; what it has produced is kept."""
        if self._cancel is None and not self.done:
            self._cancel = reason
            self._wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds; whether it has come."""
        check_timeout(timeout)
        if not self.done:
            self._refuse_waiting()
        return wait_for(self._done, timeout)

    def result(self, timeout: float | None = None) -> Generation:
        """Wait for the end and return what came of it.

        Parameters
        ----------
        timeout
            Seconds to wait; None waits as long as it takes. The request goes on after a timeout.

        Raises
        ------
        RequestTimeout
            If the request has not ended in time.
        RequestFailed
            If it ended with an error.
        EngineClosed
            If the engine died before it ended.
        """
        if not self.wait(timeout):
            raise RequestTimeout(
                f"request {self.request_id} has not ended after {timeout:g} s; "
                "it goes on: wait again or cancel it"
            )
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        assert self._generation is not None
        return self._generation

    def pieces(self, poll_s: float = SLICE_S) -> Iterator[str]:
        """Text as it is decoded, until the request ends (with whatever end).

        Parameters
        ----------
        poll_s
            The longest time between two checks for a keyboard interrupt, in seconds.
        """
        if not self.done:
            self._refuse_waiting()
        while True:
            try:
                piece = self._pieces.get(timeout=poll_s)
            except queue.Empty:
                continue
            if piece is None:
                self._pieces.put(None)
                return
            yield piece

    def __iter__(self) -> Iterator[str]:
        return self.pieces()

    def attach(
        self,
        wake: Callable[[], None],
        forget: Callable[[], None],
        refuse_waiting: Callable[[], None],
    ) -> None:
        """Set what the handle calls until the request ends.

        Parameters
        ----------
        wake
            On a cancel, to wake the owner thread.
        forget
            At the end.
        refuse_waiting
            Before a wait; raises on the owner thread, which would wait for itself.
        """
        self._wake, self._forget, self._refuse_waiting = wake, forget, refuse_waiting

    def push(self, piece: str) -> None:
        """Deliver text (owner thread)."""
        self._pieces.put(piece)

    def finish(self, generation: Generation) -> None:
        """End the request with its result (owner thread); the first end counts."""
        failure = None
        if generation.finish_reason is FinishReason.ERROR:
            failure = RequestFailed(f"{generation.error}", generation)
        self._end(generation, failure)

    def fail(self, failure: Exception, now: float) -> None:
        """End the request without a result: it was never run, or the engine died (owner thread)."""
        if not self.done:
            self.window.ended, self.window.finish_reason = now, str(FinishReason.ERROR)
        self._end(None, failure)

    def _end(self, generation: Generation | None, failure: Exception | None) -> None:
        if self._done.is_set():
            return
        self._generation, self._failure = generation, failure
        self._forget()
        self._done.set()
        self._pieces.put(None)
        # A handle that someone keeps must not keep the engine.
        self.attach(_nothing, _nothing, _nothing)


def check_timeout(timeout: float | None) -> None:
    """Raise InvalidRequest unless `timeout` is None or a number of seconds."""
    if timeout is None:
        return
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or math.isnan(timeout) or timeout < 0:
        raise InvalidRequest(f"timeout must be seconds of at least 0, or None, not {timeout!r}")


def cause(error: BaseException) -> str:
    """An exception in one line: its type and its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _nothing() -> None:
    pass
