"""The scripts and styles of the views, each joined from its files: a widget has one of each."""

from __future__ import annotations

import re
from pathlib import Path

from mtplx_kernel.widgets.palette import css

FOLDER = Path(__file__).parent
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


def script(name: str) -> str:
    """A module with all that it imports in front of it, so that it imports nothing.

    The files are modules by themselves. Joined they share one scope: imports name no names anew,
    and no two files have a name in common.

    Parameters
    ----------
    name
        Of a file beside this one.
    """
    parts: dict[str, str] = {}
    _collect(name, parts)
    return "\n".join(parts.values())


def style(name: str) -> str:
    """The colours, what all views share, and a file's own rules."""
    return "\n".join([css(".mtplx"), _text("page.css"), _text(name)])


def _collect(name: str, parts: dict[str, str]) -> None:
    text = _text(name)
    for wanted in IMPORT.findall(text):
        if wanted not in parts:
            _collect(wanted, parts)
    parts[name] = IMPORT.sub("", text)


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
