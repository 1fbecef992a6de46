"""The text and the bytes of single tokens, as OpenAI's log-probabilities show them."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mtplx_kernel.engine.request import Generation, TokenLogprob

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PROBE = ("Ġ", "Ċ")
"""How tokenizers that work on bytes write a space and a line's end."""
CONTINUES = range(0x80, 0xC0)
"""Bytes inside a UTF-8 character."""


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """The bytes that the characters of a byte-level vocabulary stand for (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(256 + n): byte for n, byte in enumerate(hidden)}


class TokenTexts:
    """Reads the tokens of one model.

    Parameters
    ----------
    tokenizer
        The model's, as mlx-lm wraps it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._of_bytes = all(self._is_token(character) for character in _PROBE)

    def content(self, token: int) -> bytes:
        """The bytes that a token stands for: maybe a part of a character, for an end token none."""
        written = self._tokenizer.convert_ids_to_tokens(token)
        if written is None:  # vocabularies are padded
            return b""
        byte = _BYTE.fullmatch(written)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        if self._of_bytes:
            table = _alphabet()
            found = [table.get(character) for character in written]
            if None not in found:
                return bytes(found)  # type: ignore[arg-type]
            return str(written).encode()
        return str(written).replace("▁", " ").encode()

    def _is_token(self, written: str) -> bool:
        token = self._tokenizer.convert_tokens_to_ids(written)
        return token is not None and self._tokenizer.convert_ids_to_tokens(token) == written


def shown(content: bytes) -> str:
    r"""A token's bytes as text; where they are none as OpenAI writes it, such as bytes:\xe2."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


@dataclass(frozen=True, slots=True)
class Reported:
    """A token that the answer tells of.

    Attributes
    ----------
    content
        Its bytes.
    offset
        Where in the answer's text it begins, in characters.
    """

    logprob: TokenLogprob
    content: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What a choice's answer grows by."""

    text: str = ""
    reported: tuple[Reported, ...] = ()

    def __add__(self, other: Piece) -> Piece:
        return Piece(self.text + other.text, self.reported + other.reported)

    def __bool__(self) -> bool:
        return bool(self.text or self.reported)


class Transcript:
    """One choice's answer, token by token: its text, and the tokens that the text is made of.

    Tokens are told of once text that they begin in is; those of a stop string, whose text is held
    back, are never told of.

    Parameters
    ----------
    texts
        Reads the tokens; None where none are reported.
    """

    def __init__(self, texts: TokenTexts | None) -> None:
        self._texts = texts
        self._told = 0
        self._waiting: list[Reported] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._read = 0

    def add(self, text: str, logprob: TokenLogprob | None) -> Piece:
        """Take a token's text, and what is reported of it."""
        if self._texts is not None and logprob is not None:
            content = self._texts.content(logprob.token_id)
            self._waiting.append(Reported(logprob, content, self._place(content)))
        return self._grow(text)

    def end(self, generation: Generation) -> Piece:
        """Take the rest of the text."""
        piece = self._grow(generation.text[self._told :])
        by_a_stop_string = generation.finish_reason == "stop" and not generation.window.end_token
        return piece if by_a_stop_string else piece + Piece("", tuple(self._waiting))

    def _place(self, content: bytes) -> int:
        """Where in the text the next token begins; one inside a character where that does."""
        unfinished = self._decoder.getstate()[0]
        if unfinished and content and content[0] not in CONTINUES:
            self._read += len(self._decoder.decode(b"", final=True))
        place = self._read
        self._read += len(self._decoder.decode(content))
        return place

    def _grow(self, text: str) -> Piece:
        self._told += len(text)
        begun = sum(reported.offset < self._told for reported in self._waiting)
        reported = tuple(self._waiting[:begun])
        del self._waiting[:begun]
        return Piece(text, reported)
