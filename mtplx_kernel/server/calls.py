"""Reads calls out of an answer's text, as it comes: the rest of it is the message's content."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass

from mtplx_kernel.server.tools import ToolUse


@dataclass(frozen=True, slots=True)
class Call:
    """One call: an id for the answer to it, the function, and its arguments as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Read:
    """What some text added to an answer."""

    content: str = ""
    calls: tuple[Call, ...] = ()

    def __add__(self, other: Read) -> Read:
        return Read(self.content + other.content, self.calls + other.calls)


class CallReader:
    """Reads one answer. What looks like a call and is none stays part of the content.

    Parameters
    ----------
    use
        How calls are written, and of which functions; without any, all is content.
    """

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._names = {tool["function"]["name"] for tool in use.offered}
        self._held = ""
        self._inside = False
        self.count = 0

    def add(self, text: str) -> Read:
        """Take more of the text."""
        if not self._names:
            return Read(text)
        self._held += text
        found = Read()
        while True:
            read = self._call() if self._inside else self._content()
            if read is None:
                return found
            found += read

    def end(self) -> Read:
        """Take the end of the text."""
        style, found = self._use.style, Read()
        if self._inside and not style.end:
            found = self._read(self._held, "")
        elif self._inside:
            found = Read(style.start + self._held)
        elif not self.count or self._held.strip():
            found = Read(self._held)
        self._held, self._inside = "", False
        return found

    def _content(self) -> Read | None:
        """Text up to the next call; None once there is no more to say of what is known.

        Blanks before a call are none of the message's, so they wait for what comes.
        """
        start = self._use.style.start
        before, mark, after = self._held.partition(start)
        if mark:
            self._held, self._inside = after, True
            return Read(before.rstrip())
        lengths = range(min(len(start) - 1, len(before)), 0, -1)
        begun = next((n for n in lengths if before.endswith(start[:n])), 0)
        said = before[: len(before) - begun].rstrip()
        self._held = before[len(said) :]
        return Read(said) if said else None

    def _call(self) -> Read | None:
        end = self._use.style.end
        if not end or end not in self._held:
            return None
        written, _, self._held = self._held.partition(end)
        self._inside = False
        return self._read(written, end)

    def _read(self, written: str, end: str) -> Read:
        """One call or several, if what stands between the marks is that."""
        try:
            found = self._use.style.parse(written, self._use.offered)
            calls = tuple(
                self._checked(each) for each in (found if isinstance(found, list) else [found])
            )
            if not calls:
                raise ValueError("no call")
        except Exception:  # parsers raise what they like at what a model wrote
            return Read(self._use.style.start + written + end)
        if self._use.single:
            calls = calls[: 1 - min(self.count, 1)]
        self.count += len(calls)
        return Read(calls=calls)

    def _checked(self, found: object) -> Call:
        if not isinstance(found, dict) or found.get("name") not in self._names:
            raise ValueError("no call of a function that was offered")
        arguments = found.get("arguments", {})
        if not isinstance(arguments, dict):
            raise ValueError("arguments are an object")
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        return Call(f"call_{secrets.token_hex(12)}", found["name"], text)
