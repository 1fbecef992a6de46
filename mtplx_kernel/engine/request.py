"""A request from submit to result: what is asked, the handle to wait on, and what comes back."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from mtplx_kernel.decoding.logprob import TokenLogprob as TokenLogprob
from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.decoding.text import Decodes as Decodes
from mtplx_kernel.decoding.text import TextStream as TextStream
from mtplx_kernel.engine.slices import SLICE_S, wait_for
from mtplx_kernel.engine.stats import GenerationStats
from mtplx_kernel.engine.timeline import DecodeWindow
from mtplx_kernel.errors import InvalidRequest, RequestFailed, RequestTimeout

if TYPE_CHECKING:
    from mtplx_kernel.caching.prefix import PrefixStore
    from mtplx_kernel.engine.constraints import Compiled


class FinishReason(StrEnum):
    """Why a request ended; it ends exactly once."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a caller may hang into a request. All run on the owner thread, between two forwards.

    Attributes
    ----------
    on_token
        Gets each token's id and the text that it released (maybe none).
    on_logprob
        Gets what is reported of each token, right before `on_token` gets the token; never called
        where the request reports no log-probabilities.
    on_prefill
        Gets how many prompt tokens are in the caches, and how many there are.
    on_decode_start
        Called when the first token has come.
    cancelled
        Asked before each forward, and while nothing runs many times a second, whether to end the
        request.
    solo
        Wraps the run of a request that has the model to itself from start to end: it gets that
        run as a function, and must call it.
    restore, commit
        The prefix cache that the request reads, and the one that keeps its tokens; None bypasses
        it. "engine" is the engine's own.
    """

    on_token: Callable[[int, str], None] | None = None
    on_logprob: Callable[[TokenLogprob], None] | None = None
    on_prefill: Callable[[int, int], None] | None = None
    on_decode_start: Callable[[], None] | None = None
    cancelled: Callable[[], bool] | None = None
    solo: Callable[[Callable[[], Mapping[str, Any]]], object] | None = None
    restore: PrefixStore | Literal["engine"] | None = "engine"
    commit: PrefixStore | Literal["engine"] | None = "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine runs: ids in, options, and who is told.

    Attributes
    ----------
    draft_params
        How the head's drafts are drawn; None as the tokens are.
    compiled
        What the answer is held to, if it is.
    omit_bonus
        Whether the token after a full accept is left for the next cycle.
    weight
        Its share of the service where requests take turns.
    key
        What rows of its cohort must have in common, beside what its options say.
    cohort, members
        The closed cohort that it was submitted with, and how many that has.
    alone
        Whether it takes its turn in the line of hyper, whatever the scheduler.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    mode: GenerationMode
    hooks: Hooks = field(default_factory=Hooks)
    draft_params: SamplingParams | None = None
    compiled: Compiled | None = None
    omit_bonus: bool = False
    weight: float = 1.0
    key: str = ""
    cohort: str | None = None
    members: int = 1
    alone: bool = False

    @property
    def compatibility(self) -> str:
        """What must be common to the rows of a cohort: one forward, one way to accept."""
        drafts = self.draft_params or self.params
        kinds = ["greedy" if p.temperature == 0 else "sampled" for p in (self.params, drafts)]
        bonus = "no-bonus" if self.omit_bonus else "bonus"
        parts = (str(self.mode), str(self.params.acceptance), *kinds, bonus, self.key)
        return "/".join(part for part in parts if part)


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
    logprobs
        One entry for each of `token_ids`; None where none were asked for.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: GenerationStats
    window: DecodeWindow
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None

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

    def _repr_html_(self) -> str:
        """The same line; all stats unfold below it. The text is left out: it was streamed."""
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{name}</th>'
            f'<td style="text-align:left">{escape(_said(value))}</td></tr>'
            for name, value in self.stats.as_dict().items()
        )
        return f"<details><summary>{escape(repr(self))}</summary><table>{rows}</table></details>"


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
        self._told: list[Callable[[Handle], None]] = []
        self.told_error: str | None = None
        self._ending = threading.Lock()
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

    def when_done(self, tell: Callable[[Handle], None]) -> None:
        """Call `tell` with the handle once the request has ended (owner thread), or now if it has.

        What it raises stays here, in `told_error`: nobody waits for it.
        """
        with self._ending:
            if not self.done:
                self._told.append(tell)
                return
        self._tell(tell)

    def _tell(self, tell: Callable[[Handle], None]) -> None:
        try:
            tell(self)
        except BaseException as error:  # the caller's code: it must not end the engine's thread
            self.told_error = cause(error)

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
        with self._ending:
            self._done.set()
            told, self._told = self._told, []
        self._pieces.put(None)
        # A handle that someone keeps must not keep the engine.
        self.attach(_nothing, _nothing, _nothing)
        for tell in told:
            self._tell(tell)


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


def _said(value: object) -> str:
    """A number that stats hold, or several, as people read them."""
    if isinstance(value, tuple):
        return ", ".join(_said(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _nothing() -> None:
    pass
