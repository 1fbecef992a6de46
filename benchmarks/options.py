"""Values of benchmarks' command lines; a wrong one ends the process with one line."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers from `low` on, to `high` if there is a limit."""
    allowed = f"a whole number from {low} to {high}" if high else f"a whole number, {low} or more"

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
            raise ArgumentTypeError(f"{text!r} is not {allowed}")
        return int(text)

    return parse


def wholes(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of different whole numbers with commas between them."""

    def parse(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        found = [int(part) for part in parts if part.isdecimal()]
        in_range = all(low <= n <= high for n in found)
        if len(found) < len(parts) or len(set(found)) < len(found) or not in_range:
            raise ArgumentTypeError(
                f"{text!r} is not a list of different whole numbers from {low} to {high}, such as "
                f"{low},{high}"
            )
        return tuple(found)

    return parse


def names(allowed: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of different names with commas between them."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        if len(set(found)) < len(found) or not set(found) <= set(allowed):
            raise ArgumentTypeError(f"{text!r} is not a list of some of {', '.join(allowed)}")
        return found

    return parse


def temperatures(text: str) -> tuple[float, ...]:
    """Different temperatures from 0 to 100, with commas between them."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or len(set(found)) < len(found) or not all(0 <= t <= 100 for t in found):
        raise ArgumentTypeError(
            f"{text!r} is not a list of different temperatures from 0 to 100, such as 0,0.8"
        )
    return found
