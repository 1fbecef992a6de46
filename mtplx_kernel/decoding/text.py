"""Text of one request, token by token: whole characters only, stop strings held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

CONTEXT_TOKENS = 6
"""Tokens decoded in front of a new one: spacing and joined characters depend on them."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_UNDECIDED = 3
"""Bytes of an unfinished character; a decoder shows them as one replacement or as one each."""


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
        # The ids from `_start` on are decoded anew with each token. Up to `_clean` they are whole
        # characters; `_seen` characters of their text are known.
        self._start = 0
        self._clean = len(self._ids)
        self._seen = len(tokenizer.decode(self._ids))
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
        now = self._tokenizer.decode(self._ids[self._start :])
        invalid = len(now) - len(now.rstrip(REPLACEMENT))
        if invalid and len(self._ids) - self._clean <= MAX_UNDECIDED and not final:
            # Some decoders give up a whole run of bytes, finished characters too, for one byte.
            return ""
        decided = len(now) if final else len(now) - min(invalid, MAX_UNDECIDED)
        text = now[self._seen : decided]
        self._seen = max(self._seen, decided)
        if text and not invalid:
            self._start, self._clean = self._clean, len(self._ids)
            self._seen = len(self._tokenizer.decode(self._ids[self._start :]))
        return text

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
