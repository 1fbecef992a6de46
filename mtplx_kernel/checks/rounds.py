"""What checks that switch settings have in common: questions, lengths, order, putting back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from mtplx_kernel.checks.prompts import CheckPrompt
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.errors import EngineClosed, InvalidRequest
from mtplx_kernel.scheduling.options import TAKEN, SchedulerMode

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

T = TypeVar("T")

MAX_TOKENS = 48
LEAST_TOKENS = MAX_DEPTH + 2
"""A first cycle may give all its drafts and one token more: one has to come after it."""


def encoded(engine: Engine, prompts: Sequence[CheckPrompt], length: int) -> list[tuple[int, ...]]:
    """The prompts as token ids.

    Raises
    ------
    InvalidRequest
        If answers of this length would not fit behind them.
    """
    encoder = PromptEncoder(engine.tokenizer, engine.facts)
    ids = [encoder.encode(prompt.text) for prompt in prompts]
    room = engine.facts.context_length - max(len(prompt) for prompt in ids)
    if length > room:
        raise InvalidRequest(
            f"max_tokens must be at most {room}, what {engine.name} has room for after the "
            f"longest prompt, not {length}"
        )
    return ids


def in_turn(settings: Sequence[T], place: int) -> list[T]:
    """The settings, beginning at another one each time, every other time backwards."""
    first = place // 2 % len(settings)
    order = [*settings[first:], *settings[:first]]
    return order[::-1] if place % 2 else order


def busy(engine: Engine) -> str | None:
    """That requests run or wait, in words; None where none do."""
    status = engine.status()
    running, waiting = status["running"], status["queue"]["waiting"]
    return f"busy ({running} running, {waiting} waiting)" if running or waiting else None


@contextmanager
def scheduler_put_back(engine: Engine) -> Iterator[str]:
    """Give the name of the mode in force, and put it back at the end, however that comes.

    With it come its settings and, where it is hyper, the width executor of its gate.

    Raises
    ------
    EngineClosed
        If the engine has ended already.
    """
    status = engine.status()
    if "scheduler" not in status:
        raise EngineClosed(f"the engine takes no requests: {status['reason']}")
    scheduler = status["scheduler"]
    mode = scheduler["mode"]
    settings = {name: scheduler["settings"][name] for name in TAKEN[SchedulerMode(mode)]}
    executor = engine.gate.width_executor if mode == SchedulerMode.HYPER else None
    try:
        yield mode
    finally:
        if not engine.closed:
            engine.configure(scheduler=mode, **settings)
            if executor is not None:
                engine.gate.install_width_executor(executor)
            elif mode == SchedulerMode.HYPER:
                engine.gate.clear_width_executor()
