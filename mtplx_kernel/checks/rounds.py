"""What comparisons in alternating rounds have in common: their questions, lengths and order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from mtplx_kernel.checks.prompts import CheckPrompt
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.errors import InvalidRequest

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
