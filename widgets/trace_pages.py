"""A trace as text, as a page and as plain data: the same marks wherever it is read."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any
from unicodedata import category

from mtplx_kernel.widgets.chart_pictures import png
from mtplx_kernel.widgets.palette import SHADES, TINTS, tint
from mtplx_kernel.widgets.rates import counted
from mtplx_kernel.widgets.tables import table
from mtplx_kernel.widgets.trace_chart import cycle_chart
from mtplx_kernel.widgets.tracing import MEANING, UNKNOWN, CycleLine, Piece, Trace

MARKS = {
    "accepted": ("[", "]"),
    "correction": ("{", "}"),
    "bonus": ("<", ">"),
    "plain": ("", ""),
    UNKNOWN: ("", ""),
}
TAGS = {"accepted": "u", "correction": "i", "bonus": "b"}
"""The HTML element of each kind: it can be told without colours, and where styles are taken out."""
HEADER = ("cycle", "ms", "drafted by", "right", "rows", "tokens")
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of characters that move the cursor, colour a terminal or turn a line around."""
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
SHOWN_CYCLES = 400
"""Most cycles in a table; of more, the first and the last half."""


def bundle(trace: Trace) -> dict[str, str]:
    """All forms of a trace by their MIME types, as a notebook keeps them."""
    chart = cycle_chart(trace)
    picture = base64.b64encode(png([chart])).decode()
    image = (
        f'<p><img alt="{escape(chart.aria)}" style="max-width:100%" '
        f'src="data:image/png;base64,{picture}"></p>'
    )
    return {
        "image/png": picture,
        "text/html": as_html(trace) + image,
        "text/plain": as_text(trace),
    }


def as_text(trace: Trace) -> str:
    """A line a cycle, with each token between the marks of its kind."""
    if not trace.cycles:
        return trace.summary
    by_cycle = _by_cycle(trace)
    rows = [
        (*line.cells, "".join(_marked(piece) for piece in by_cycle.get(line.number, ())))
        for line in _shown(trace.cycles)
    ]
    shown = [HEADER, *rows]
    widths = [max(len(row[n]) for row in shown) for n in range(len(HEADER) - 1)]
    lines = [
        "  ".join([*(f"{c:>{w}}" for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in shown
    ]
    legend = ", ".join(f"{a}{MEANING[kind]}{b}" for kind, (a, b) in _legend(trace) if a)
    left_out = len(trace.cycles) - len(rows)
    if left_out:
        lines.append(f"({left_out} cycles in the middle are left out)")
    return "\n".join(line for line in (trace.summary, legend, *lines) if line)


def as_html(trace: Trace) -> str:
    """The text with its tokens marked by how they came, then the cycles, folded.

    Every ground brings its own colour of text, so that it reads on light pages and on dark ones.
    """
    keys = "; ".join(
        f"{_element(kind, tint(kind, 1), MEANING[kind])}: {n}" for kind, n in trace.counts.items()
    )
    spans = "".join(_span(list(run)) for _, run in groupby(trace.pieces, _run))
    # Notebooks break lines of a `pre` inside words, unless they are told not to.
    style = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
    # A page leaves out a line end right at the start of a `pre`.
    first = "\n" if spans.startswith("\n") else ""
    text = f'<pre style="{style}">{first}{spans}</pre>'
    return f"<p>{escape(trace.summary)}</p><p>{keys}</p>{text}{_table(trace)}"


def as_data(trace: Trace) -> dict[str, Any]:
    """As plain data for the live view: each piece and each cycle a list, in the fields' order."""
    return {
        "request": trace.request_id,
        "running": trace.running,
        "summary": trace.summary,
        "counts": trace.counts,
        "meaning": {kind: MEANING[kind] for kind in trace.counts},
        "pieces": [[p.text, p.kind, p.depth, p.cycle] for p in trace.pieces],
        "cycles": [
            [c.number, c.ms, c.drafted, c.accepted, c.tokens, c.last, c.by, c.rows]
            for c in trace.cycles
        ],
    }


def _by_cycle(trace: Trace) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in trace.pieces:
        found.setdefault(piece.cycle, []).append(piece)
    return found


def _legend(trace: Trace) -> Iterator[tuple[str, tuple[str, str]]]:
    return ((kind, MARKS[kind]) for kind in trace.counts)


def _marked(piece: Piece) -> str:
    before, after = MARKS[piece.kind]
    return f"{before}{''.join(map(_plain, piece.text))}{after}"


def _plain(letter: str) -> str:
    """A letter as it is, or told by its number where it would be more than a letter."""
    unseen = category(letter) in UNSEEN and letter not in JOINERS
    return letter.encode("unicode_escape").decode() if unseen or letter == "\\" else letter


def _shown(cycles: Sequence[CycleLine]) -> list[CycleLine]:
    if len(cycles) <= SHOWN_CYCLES:
        return list(cycles)
    half = SHOWN_CYCLES // 2
    return [*cycles[:half], *cycles[-half:]]


def _run(piece: Piece) -> tuple[str, int]:
    return tint(piece.kind, piece.depth), piece.cycle


def _span(run: Sequence[Piece]) -> str:
    """Neighbours that look the same, as one element."""
    text = "".join(piece.text for piece in run)
    return _element(run[0].kind, tint(run[0].kind, run[0].depth), text) if text else ""


def _element(kind: str, ground: str, text: str) -> str:
    tag, plain = TAGS.get(kind), escape(text)
    if tag is None:
        return plain
    colours = f"background:{TINTS[ground].light};color:{SHADES['text'].light}"
    return f'<{tag} style="{colours}">{plain}</{tag}>'


def _table(trace: Trace) -> str:
    if not trace.cycles:
        return ""
    by_cycle, shown = _by_cycle(trace), _shown(trace.cycles)
    rows = [
        (*line.cells, "".join(_marked(piece) for piece in by_cycle.get(line.number, ())))
        for line in shown
    ]
    left_out = len(trace.cycles) - len(shown)
    note = f", without {left_out} in the middle" if left_out else ""
    marks = " ".join(f"{a}{MEANING[kind]}{b}" for kind, (a, b) in _legend(trace) if a)
    summary = f"{counted(len(trace.cycles), 'cycle')}{note}"
    return f"<details><summary>{summary}</summary>{table(HEADER, rows, marks)}</details>"
