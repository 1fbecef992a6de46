"""Tables as parts of a page: what heads a column or a row is told to those who hear it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of plain texts, the first of each row its name."""
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(map(_row, rows))
    return f"<table>{said}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _row(cells: Sequence[str]) -> str:
    first, *rest = (escape(cell) for cell in cells)
    others = "".join(f"<td>{cell}</td>" for cell in rest)
    return f'<tr><th scope="row">{first}</th>{others}</tr>'
