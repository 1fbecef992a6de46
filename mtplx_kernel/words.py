"""Split the line of a magic into words, with the prompt and its backslashes kept as they are."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Mapping

from mtplx_kernel.errors import InvalidRequest

_ESCAPE = re.compile(r"\\(n|t|r|0|\\|'|\"|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "'": "'", '"': '"'}


def unescape(text: str) -> str:
    r"""Replace ``\n``, ``\t``, ``\r``, ``\0``, ``\\``, ``\'``, ``\"``, ``\xHH`` and ``\uHHHH``.

    Any other backslash stays as it is.
    """

    def replacement(match: re.Match[str]) -> str:
        code = match[1]
        return _PLAIN_ESCAPES[code] if code in _PLAIN_ESCAPES else chr(int(code[1:], 16))

    return _ESCAPE.sub(replacement, text)


def split_words(line: str) -> list[str]:
    r"""Split a line as a shell does, but with backslashes kept (paths, ``--stop \n``).

    Raises
    ------
    InvalidRequest
        If a quote is not closed.
    """
    words = []
    rest = line
    while rest.strip():
        word, rest = _first_word(rest)
        words.append(word)
    return words


def split_prompt(line: str, takes_value: Mapping[str, bool]) -> tuple[list[str], str]:
    """Split ``[options] PROMPT`` into the options' words and the prompt, verbatim.

    `takes_value` says for each option's flag whether a value follows it.
    A prompt that is quoted as a whole loses its quotes, and options may follow it.

    Raises
    ------
    InvalidRequest
        If a quote among the options is not closed, or an option stands inside a bare prompt.
    """
    words: list[str] = []
    rest = line.strip()
    while rest.startswith("--"):
        word, rest = _first_word(rest)
        if word == "--":
            return words, rest.strip()
        words.append(word)
        if rest and takes_value.get(word, False):
            value, rest = _first_word(rest)
            words.append(value)
        rest = rest.lstrip()
    quoted = _quoted(rest)
    if quoted is not None:
        prompt, after = quoted
        return words + split_words(after), prompt
    for word in rest.split():
        if word.partition("=")[0] in takes_value:
            raise InvalidRequest(
                f"options go before the prompt: write {word} first, "
                "or quote the whole prompt if it is part of it"
            )
    return words, rest


def _first_word(text: str) -> tuple[str, str]:
    stream = io.StringIO(text)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = lexer.escape = ""
    try:
        word = lexer.get_token()
    except ValueError as err:
        raise InvalidRequest(f"a quote is not closed in: {text.strip()}") from err
    return word or "", stream.read()


def _quoted(text: str) -> tuple[str, str] | None:
    if text[:1] not in {"'", '"'}:
        return None
    end = text.find(text[0], 1)
    after = text[end + 1 :].strip()
    if end < 0 or (after and not after.startswith("--")):
        return None
    return text[1:end], after
