"""From a caller's prompt and options to a request that waits for the owner thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mtplx_kernel.decoding.params import MAX_LOGPROBS, SamplingParams
from mtplx_kernel.decoding.text import CONTEXT_TOKENS
from mtplx_kernel.engine.constraints import Compiled, Constraints
from mtplx_kernel.engine.defaults import Defaults
from mtplx_kernel.engine.ledger import Ledger
from mtplx_kernel.engine.memory import Memory
from mtplx_kernel.engine.opened import Opened
from mtplx_kernel.engine.owner import Owner
from mtplx_kernel.engine.prompts import Prompt, PromptEncoder
from mtplx_kernel.engine.request import Handle, Hooks, Request, TokenLogprob
from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.errors import InvalidRequest, MTPLXError, QueueFull
from mtplx_kernel.models.load import ModelFacts

TokenCallback = Callable[[int, str], None]
LogprobCallback = Callable[[TokenLogprob], None]
LEAST_PRIORITY, MOST_PRIORITY = 0.01, 100.0
NOT_SAMPLING = (
    "raw",
    "system",
    "tools",
    "on_token",
    "on_logprob",
    "priority",
    "prefix_cache",
    "hyper",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request wants beside its sampling; see `Request` and `Hooks`."""

    hooks: Hooks = field(default_factory=Hooks)
    draft_params: SamplingParams | None = None
    omit_bonus: bool = False
    weight: float = 1.0
    key: str = ""
    cohort: str | None = None
    members: int = 1
    alone: bool = False


class Intake:
    """Checks requests and opens them. Safe to use from any thread.

    Parameters
    ----------
    facts, encoder, constraints, memory
        Of the model.
    defaults
        What holds for requests that name no mode or depth.
    ledger, timeline
        Where open requests and their windows are kept.
    owner
        The thread that runs them.
    """

    def __init__(
        self,
        facts: ModelFacts,
        encoder: PromptEncoder,
        constraints: Constraints,
        memory: Memory,
        defaults: Defaults,
        ledger: Ledger,
        timeline: Timeline,
        owner: Owner,
    ) -> None:
        self.encoder = encoder
        self._facts = facts
        self._constraints = constraints
        self._memory = memory
        self._defaults = defaults
        self._ledger = ledger
        self._timeline = timeline
        self._owner = owner

    def submit(
        self,
        prompt: Prompt,
        opened: Opened,
        /,
        *,
        raw: bool = False,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        on_token: TokenCallback | None = None,
        on_logprob: LogprobCallback | None = None,
        priority: float = 1.0,
        prefix_cache: bool = True,
        hyper: bool = False,
        **options: Any,
    ) -> Handle:
        """Open a request, as `Engine` describes its options; see `open`."""
        self._ledger.check_open()
        if on_token is not None and not callable(on_token):
            raise InvalidRequest(f"on_token must be a function of id and text, not {on_token!r}")
        hooks = _hooks(on_token, on_logprob, prefix_cache)
        _check_hyper(hyper, priority)
        ask = Ask(hooks=hooks, weight=check_priority(priority), alone=hyper)
        params = self.params(options)
        if on_logprob is not None and params.logprobs is None:
            raise InvalidRequest(f"on_logprob needs logprobs, 0 to {MAX_LOGPROBS}: it is off")
        ids = self.encoder.encode(prompt, raw=raw, system=system, tools=tools)
        return self.open(ids, params, ask, opened)

    def open(
        self, ids: tuple[int, ...], params: SamplingParams, ask: Ask, opened: Opened
    ) -> Handle:
        """Open a request, with the handle in `opened` before it can run.

        Raises
        ------
        InvalidRequest
            If its caches would never fit in the memory.
        QueueFull, EngineClosed
            If no request is taken, now or at all.
        """
        longest = min(len(ids) + params.max_tokens, self._facts.context_length)
        self._memory.admit(len(ids), longest, self._defaults.checked(params.mode))

        compiled = self._constraints.of(params)

        def make(request_id: str) -> Handle:
            handle = self._handle(request_id, ids, params, compiled, ask)
            opened.append(handle)
            self._timeline.open(handle.window)
            return handle

        return self._ledger.open(
            make, lambda handle: self._owner.post(lambda runner: runner.submit(handle))
        )

    def refuse_waiting(self) -> None:
        """Raise InvalidRequest on the owner thread: it would wait for its own work."""
        self._owner.refuse_waiting()

    def submit_when_room(
        self, prompt: Prompt, options: dict[str, Any], opened: Opened
    ) -> Handle | MTPLXError:
        """Submit; where the queue is full, wait for the call's own earlier requests."""
        while True:
            try:
                return self.submit(prompt, opened, **options)
            except QueueFull as error:
                oldest = next((handle for handle in opened if not handle.done), None)
                if oldest is None:
                    return error
                oldest.wait()
            except MTPLXError as error:
                return error

    def params(self, options: dict[str, Any]) -> SamplingParams:
        """The sampling among a request's options, with the defaults applied.

        Raises
        ------
        InvalidRequest
            If one is unknown, or of a wrong value.
        """
        sampling = {k: v for k, v in options.items() if k not in NOT_SAMPLING}
        return self.applied(SamplingParams.of(sampling))

    def applied(self, params: SamplingParams) -> SamplingParams:
        """The sampling with the defaults applied.

        Raises
        ------
        InvalidRequest
            If its mode cannot be had, it biases ids that the model does not have, or its schema
            or grammar cannot be used.
        """
        self._defaults.checked(params.mode)
        highest = max(params.logit_bias or {}, default=0)
        if highest >= self._facts.vocabulary:
            raise InvalidRequest(
                f"logit_bias must be of token ids below {self._facts.vocabulary}, not {highest}"
            )
        self._constraints.of(params)
        return self._defaults.applied(params)

    def _handle(
        self,
        request_id: str,
        ids: tuple[int, ...],
        params: SamplingParams,
        compiled: Compiled | None,
        ask: Ask,
    ) -> Handle:
        request = Request(
            request_id=request_id,
            prompt_ids=ids,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            mode=self._defaults.checked(params.mode),
            hooks=ask.hooks,
            draft_params=ask.draft_params,
            compiled=compiled,
            omit_bonus=ask.omit_bonus,
            weight=ask.weight,
            key=ask.key,
            cohort=ask.cohort,
            members=ask.members,
            alone=ask.alone,
        )
        window = DecodeWindow(
            request_id, time.perf_counter(), prompt_tokens=len(ids), context=ids[-CONTEXT_TOKENS:]
        )
        handle = Handle(request, window)
        handle.attach(
            wake=lambda: self._owner.post(lambda runner: runner.cancel(handle)),
            forget=lambda: self._ledger.forget(request_id),
            refuse_waiting=self._owner.refuse_waiting,
        )
        return handle


def check_priority(priority: float) -> float:
    """The priority; InvalidRequest unless it is a number from 0.01 to 100."""
    number = isinstance(priority, int | float) and not isinstance(priority, bool)
    if not number or not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        raise InvalidRequest(
            f"priority must be a number from {LEAST_PRIORITY:g} to {MOST_PRIORITY:g}, "
            f"not {priority!r}"
        )
    return float(priority)


def _check_hyper(hyper: bool, priority: float) -> None:
    if not isinstance(hyper, bool):
        raise InvalidRequest(f"hyper must be True or False, not {hyper!r}")
    if hyper and priority != 1:
        raise InvalidRequest(
            "priority is refused with hyper, which runs its requests one at a time in their order"
        )


def _hooks(
    on_token: TokenCallback | None, on_logprob: LogprobCallback | None, prefix_cache: bool
) -> Hooks:
    if on_logprob is not None and not callable(on_logprob):
        raise InvalidRequest(f"on_logprob must be a function of a TokenLogprob, not {on_logprob!r}")
    if not isinstance(prefix_cache, bool):
        raise InvalidRequest(f"prefix_cache must be True or False, not {prefix_cache!r}")
    hooks = Hooks(on_token=on_token, on_logprob=on_logprob)
    return hooks if prefix_cache else replace(hooks, restore=None, commit=None)
