"""Tab completion of ``%mtplx``: verbs, options, their values, model names and folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.completer import SimpleCompletion, context_matcher

from mtplx_kernel import options
from mtplx_kernel.grammar import Option
from mtplx_kernel.show_options import SHOWN

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult

_LINE = re.compile(r"^\s*(?:[^=%\"'#]+=\s*)?(?P<percent>%%?)mtplx\s+(?P<words>.*)$")


FIRST_WORDS = {"mode": options.MODES, "scheduler": options.SCHEDULERS, "show": SHOWN}
"""What may stand right after a verb."""


def known_names() -> list[str]:
    """The names of the catalog and of the models on this machine."""
    from mtplx_kernel.models.catalog import known_models

    return [listing.name for listing in known_models()]


class MtplxCompletion:
    """Completes ``%mtplx`` lines and the first line of ``%%mtplx`` cells.

    Parameters
    ----------
    names
        Says which model names to offer after ``load``.
    """

    def __init__(self, names: Callable[[], Sequence[str]] = known_names) -> None:
        self._names = names

        # IPython marks matchers with attributes, which a bound method cannot take.
        @context_matcher(identifier="mtplx_kernel.completion")  # type: ignore[untyped-decorator]
        def matcher(context: CompletionContext) -> SimpleMatcherResult:
            return self._match(context)

        self.matcher = matcher

    def _match(self, context: CompletionContext) -> SimpleMatcherResult:
        line = _LINE.match(context.text_until_cursor)
        if line is None or (line["percent"] == "%%" and context.cursor_line > 0):
            return {"completions": [], "suppress": False}
        words = line["words"].split(" ")
        before, word = [w for w in words[:-1] if w], words[-1]
        candidates = self._cell(before, word) if line["percent"] == "%%" else None
        if candidates is None:
            candidates = self._verb(before, word)
        return _replacing(word, context.token, list(candidates))

    def _verb(self, before: list[str], word: str) -> Iterator[tuple[str, str]]:
        if not before:
            yield from ((verb, "verb") for verb in options.VERBS)
            return
        verb, *given = before
        allowed = options.VERBS[verb].options if verb in options.VERBS else ()
        if verb in FIRST_WORDS and not given:
            yield from ((value, "value") for value in FIRST_WORDS[verb])
        yield from _options(allowed, given, word)
        if verb == "load" and not word.startswith("-") and not _awaits_value(allowed, given):
            yield from ((name, "model") for name in self._names())
            yield from _folders(word)

    def _cell(self, before: list[str], word: str) -> Iterator[tuple[str, str]]:
        return _options(options.REQUEST_OPTIONS, before, word)


def _options(allowed: Sequence[Option], before: list[str], word: str) -> Iterator[tuple[str, str]]:
    by_flag = {option.flag: option for option in allowed}
    flag, equals, text = word.partition("=")
    if equals and flag in by_flag:
        found = _values(by_flag[flag], text)
        yield from ((f"{flag}={value}", kind) for value, kind in found)
        return
    if _awaits_value(allowed, before):
        yield from _values(by_flag[before[-1]], word)
        return
    for option in allowed:
        if option.repeats or option.flag not in before:
            yield option.flag, "option"


def _values(option: Option, word: str) -> Iterator[tuple[str, str]]:
    yield from ((value, "value") for value in option.values)
    if option.weights:
        yield from _folders(word, files=".safetensors")


def _awaits_value(allowed: Sequence[Option], before: list[str]) -> bool:
    return any(o.read is not None and before[-1:] == [o.flag] for o in allowed)


def _folders(word: str, files: str | None = None) -> Iterator[tuple[str, str]]:
    """Folders that go on from a word, and files with one ending where it is given."""
    if not word:
        return
    typed = word[: max(word.rfind("/"), word.rfind("\\")) + 1]
    folder = Path(typed).expanduser() if typed else Path()
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") and not word[len(typed) :].startswith(".")
        if path.is_dir() and not hidden:
            yield f"{typed}{path.name}/", "path"
        elif files is not None and path.suffix == files and not hidden:
            yield f"{typed}{path.name}", "path"


def _replacing(word: str, token: str, candidates: list[tuple[str, str]]) -> SimpleMatcherResult:
    """Cut the candidates to what replaces IPython's token, which may be a part of the word."""
    typed = len(word) - len(token) if word.endswith(token) else 0
    found = [
        SimpleCompletion(text=text[typed:], type=kind)
        for text, kind in candidates
        if text.startswith(word)
    ]
    return {"completions": found, "suppress": bool(found), "ordered": True}
