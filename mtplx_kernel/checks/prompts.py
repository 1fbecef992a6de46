"""The questions that ``%mtplx verify`` and ``%mtplx tune`` ask, one of each kind of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mtplx_kernel.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class CheckPrompt:
    """One user message and the kind of text that it asks for."""

    name: str
    domain: str
    text: str


PROMPTS: tuple[CheckPrompt, ...] = (
    CheckPrompt(
        "chat-rain",
        "chat",
        "It has rained all week and my children are bored. What could we do at home today?",
    ),
    CheckPrompt(
        "code-words",
        "code",
        "Write a Python function that counts how often each word occurs in a text.",
    ),
    CheckPrompt(
        "rewrite-invitation",
        "rewriting",
        "Write this again, but for Friday at noon: We would like to invite you to the opening of "
        "our new bakery on Thursday at ten. There will be fresh bread, coffee and music, and the "
        "first fifty guests will take a loaf home.",
    ),
    CheckPrompt(
        "facts-moon",
        "facts",
        "Why do we always see the same side of the moon?",
    ),
    CheckPrompt(
        "story-clock",
        "story",
        "Tell a short story about a clock that runs backwards one hour each night.",
    ),
    CheckPrompt(
        "list-kitchen",
        "lists",
        "List ten things that every small kitchen needs, with one reason for each.",
    ),
    CheckPrompt(
        "data-json",
        "data",
        "Give three invented books as a JSON list with the keys title, author and year.",
    ),
    CheckPrompt(
        "sums-apples",
        "sums",
        "A box holds 12 apples. How many apples are in 7 boxes when 5 apples have been eaten? "
        "Show each step.",
    ),
)

LAW_PROMPT = "My favourite colour is blue. His favourite colour is red. Her favourite colour is"
"""Continued as it stands: several words are likely, and its own words draft one of them."""


def first_prompts(wanted: int | None) -> Sequence[CheckPrompt]:
    """The first so many prompts; None takes all.

    Raises
    ------
    InvalidRequest
        If there are not so many.
    """
    return PROMPTS[: whole("prompts", wanted, 1, len(PROMPTS), default=len(PROMPTS))]


def whole(name: str, value: object, low: int, high: int | None, default: int) -> int:
    """A whole number in a range; None is the default.

    Raises
    ------
    InvalidRequest
        If it is none.
    """
    if value is None:
        return default
    allowed = f"at least {low}" if high is None else f"from {low} to {high}"
    whole_number = isinstance(value, int) and not isinstance(value, bool)
    if not whole_number or value < low or (high is not None and value > high):  # type: ignore[operator]
        raise InvalidRequest(f"{name} must be a whole number {allowed}, not {value!r}")
    return value  # type: ignore[return-value]
