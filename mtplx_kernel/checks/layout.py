"""Tables of a check's report, as HTML that takes the page's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from mtplx_kernel.report import labelled, table


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table of a report."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """With aligned columns."""
        heads = tuple(name.upper() for name in self.header)
        return f"{self.caption}:\n{table(heads, self.rows)}"

    @property
    def html(self) -> str:
        """With cells that a screen reader announces by their headings."""
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.header)
        lines = "".join(f"<tr>{_cells(row)}</tr>" for row in self.rows)
        return (
            f'<table><caption style="text-align:left">{escape(self.caption)}</caption>'
            f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
        )


def text_page(verdict: str, facts: Sequence[tuple[str, str]], sheets: Iterable[Sheet]) -> str:
    """A report for people who read text: the verdict first."""
    return "\n\n".join(["\n".join([verdict, labelled(facts)]), *(s.text for s in sheets)])


def html_page(verdict: str, facts: Sequence[tuple[str, str]], sheets: Iterable[Sheet]) -> str:
    """The same as HTML."""
    lines = "".join(f"<li>{escape(label)}: {escape(text)}</li>" for label, text in facts)
    tables = "".join(sheet.html for sheet in sheets)
    return f"<p><strong>{escape(verdict)}</strong></p><ul>{lines}</ul>{tables}"


def _cells(row: Sequence[str]) -> str:
    first, *rest = (escape(cell) for cell in row)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest)
