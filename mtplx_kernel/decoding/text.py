"""Text of one request, token by token: whole characters only, stop strings held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

CONTEXT_TOKENS = 6
"""Tokens decoded in front of a new one: spacing and joined characters depend on them."""
MAX_INCOMPLETE = 8
"""An unfinished character never takes more tokens than this: then it is shown as it is."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decodes(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, ids: list[int], /) -> str:
        """Text of ids."""
        ...


class TextStream:
    """Turns a request's ids into text pieces.

    Parameters
    ----------
    tokenizer
        Decodes ids.
    prompt_ids
        The prompt; its last tokens give the first output token its context.
    stop
        Strings that end the text; text that may begin one is held back until that is decided.
    """

    def __init__(
        self, tokenizer: Decodes, prompt_ids: Sequence[int], stop: tuple[str, ...] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._ids = list(prompt_ids[-CONTEXT_TOKENS:])
        self._context = 0
        self._shown = len(self._ids)
        self._held = ""
        self._released: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        """All text released so far."""
        return "".join(self._released)

    def add(self, token: int) -> str:
        """Take one token and return the text that it releases, maybe none.

        Sets `stopped` when the token completes a stop string.
        """
        self._ids.append(token)
        return self._release(self._new_text(final=False))

    def finish(self) -> str:
        """Release what was held back: the request ended in another way."""
        if self.stopped:
            return ""
        piece = self._release(self._new_text(final=True))
        if not self.stopped and self._held:
            self._released.append(self._held)
            piece, self._held = piece + self._held, ""
        return piece

    def _new_text(self, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._context : self._shown])
        now = self._tokenizer.decode(self._ids[self._context :])
        waiting = len(self._ids) - self._shown
        unfinished = now.endswith(REPLACEMENT) and waiting < MAX_INCOMPLETE and not final
        if unfinished or len(now) <= len(before):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return now[len(before) :]

    def _release(self, text: str) -> str:
        text = self._held + text
        ends = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            text, self._held = text[: min(ends)], ""
        else:
            keep = self._undecided(text)
            text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        if text:
            self._released.append(text)
        return text

    def _undecided(self, text: str) -> int:
        """Length of the longest end of the text that may begin a stop string."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0
