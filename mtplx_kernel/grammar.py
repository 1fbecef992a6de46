"""The grammar of options: what the magics and the command line read words with."""

from __future__ import annotations

import difflib
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mtplx_kernel.errors import InvalidRequest

HELP_WIDTH = 78


def whole(text: str) -> int | str:
    """A whole number; what is none stays text, so that whoever takes it says what is allowed."""
    try:
        return int(text)
    except ValueError:
        return text


def number(text: str) -> float | str:
    """A number; what is none stays text."""
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flag, how its value is read (None: it takes none), and its help line."""

    flag: str
    read: Callable[[str], Any] | None
    metavar: str
    help: str
    repeats: bool = False
    values: tuple[str, ...] = ()
    """What completion offers as its value."""
    weights: bool = False
    """Whether its value may be a folder or a file with weights; completion offers those too."""

    @property
    def name(self) -> str:
        """The option as a Python name."""
        return self.flag[2:].replace("-", "_")


NO_OPTIONS: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of ``%mtplx`` or of ``mtplx-kernel``: how it is written, what it does, its options."""

    usage: str
    help: str
    options: tuple[Option, ...] = NO_OPTIONS


def read_options(
    allowed: Sequence[Option], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Read words as options, written in full; what is no option comes back in order.

    The word after an option that takes a value is its value, however it begins; only another
    option's name is not taken for one (``--stop=--raw`` says that it is meant).

    Returns
    -------
    tuple of dict and list
        The values of the given options by name (a list where an option may be repeated), and the
        plain words.

    Raises
    ------
    InvalidRequest
        For an unknown option, a missing value or a bad value.
    """
    by_flag = {option.flag: option for option in allowed}
    found: dict[str, Any] = {}
    rest: list[str] = []
    left = deque(words)
    while left:
        word = left.popleft()
        if word == "--":
            return found, [*rest, *left]
        flag, equals, text = word.partition("=")
        option = by_flag.get(flag)
        if option is None:
            if word.startswith("--"):
                raise InvalidRequest(unknown("option", flag, by_flag))
            rest.append(word)
            continue
        if option.read is None and equals:
            raise InvalidRequest(f"{flag} takes no value")
        if option.read is not None and not equals:
            if not left or left[0].partition("=")[0] in by_flag:
                raise InvalidRequest(f"{flag} needs a value: {flag} {option.metavar}")
            text = left.popleft()
        value = _value(option, text)
        found[option.name] = [*found.get(option.name, []), value] if option.repeats else value
    return found, rest


def _value(option: Option, text: str) -> Any:
    if option.read is None:
        return True
    try:
        return option.read(text)
    except ValueError as err:
        raise InvalidRequest(f"{option.flag} {err}") from err


def unknown(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Say that `name` is no known `kind`, with the nearest one if any is near."""
    names = list(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    listed = f"allowed: {', '.join(names)}" if names else "none is allowed here"
    return f"unknown {kind} {name!r}; {hint}{listed}"


@contextmanager
def named_as_options(options: Sequence[Option]) -> Iterator[None]:
    """Let a refusal that begins with the name of a value begin with its option instead.

    Raises
    ------
    InvalidRequest
        In the words of the options.
    """
    flags = {option.name: option.flag for option in options}
    try:
        yield
    except InvalidRequest as err:
        name, _, problem = str(err).partition(" ")
        raise InvalidRequest(f"{flags.get(name, name)} {problem}") from err


def columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of a help page: what is written, and beside it what it means."""
    width = max(len(left.strip()) for left, _ in rows) + 2
    lines: list[str] = []
    for left, right in rows:
        lines += textwrap.wrap(
            right,
            HELP_WIDTH,
            initial_indent=f"  {left.strip():<{width}}",
            subsequent_indent=" " * (width + 2),
        )
    return lines
