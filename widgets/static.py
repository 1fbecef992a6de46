"""The timeline at rest: a picture, a table and a text, which need no kernel and no script."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mtplx_kernel.engine.timeline import TimelineView
from mtplx_kernel.widgets.layout import COLUMNS, Layout, layout
from mtplx_kernel.widgets.palette import SHADES
from mtplx_kernel.widgets.tables import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mtplx_kernel.widgets.figures import ShownFigure

WIDTH = 900
DPI = 100
LINE_PX, THINNEST_PX = 22.0, 3.0
"""How high a line is, and how low where there are many."""
TALLEST_PX = 760.0
RATE_PX, EDGE_PX = 80.0, 96.0
"""How high the curve is, and the room above, between and below both."""
LABEL_PX = 11.0
"""Lines that are lower have no labels."""
TEXT_ROWS = 40
LEGEND = (
    ("queued", "queued"),
    ("prefill", "prefill"),
    ("decode", "decode"),
    ("accepted", "drafts accepted a cycle"),
    ("error", "failed or cancelled"),
)


def bundle(view: TimelineView, width: float = WIDTH) -> dict[str, str]:
    """What shows a timeline anywhere, by MIME type: `image/png`, `text/html` and `text/plain`.

    The picture stands in the page too: readers of notebooks show the page alone, and what makes
    LaTeX or PDF of them takes the picture.

    Parameters
    ----------
    width
        Of the picture, in pixels.
    """
    placed = layout(view, width)
    picture = base64.b64encode(png(view, width)).decode()
    return {
        "image/png": picture,
        "text/html": page(placed, picture),
        "text/plain": text(placed),
    }


def png(view: TimelineView, width: float = WIDTH, *, dark: bool = False) -> bytes:
    """The picture as a PNG file."""
    return figure(view, width, dark=dark).png()


def figure(view: TimelineView, width: float = WIDTH, *, dark: bool = False) -> ShownFigure:
    """The picture as a matplotlib figure, which belongs to no window."""
    from matplotlib.patches import Patch

    from mtplx_kernel.widgets.figures import ShownFigure

    placed = layout(view, width)
    colours = {role: shade.on(dark=dark) for role, shade in SHADES.items()}
    count = max(1, len(placed.order))
    line = max(THINNEST_PX, min(LINE_PX, TALLEST_PX / count))
    height = RATE_PX + EDGE_PX + line * count
    drawn = ShownFigure(
        text(placed),
        figsize=(width / DPI, height / DPI),
        dpi=DPI,
        layout="constrained",
        facecolor=colours["ground"],
    )
    rate, lines = drawn.subplots(2, 1, sharex=True, height_ratios=[RATE_PX, line * count])
    _draw_rate(rate, placed, colours)
    _draw_lines(lines, placed, colours, least=(placed.end - placed.start) / width)
    if line >= LABEL_PX:
        _label(lines, placed)
    drawn.legend(
        handles=[Patch(color=colours[role], label=words) for role, words in LEGEND],
        loc="outside lower center",
        ncols=len(LEGEND),
        frameon=False,
        fontsize=8,
        labelcolor=colours["text"],
    )
    drawn.suptitle(placed.summary.split(" Cohorts:")[0], color=colours["text"], fontsize=9)
    return drawn


def draw(axes: Axes, view: TimelineView, *, dark: bool = False) -> None:
    """Draw the lines of requests alone, without the curve, into axes of the caller's."""
    width = axes.get_window_extent().width
    placed = layout(view, width)
    colours = {role: shade.on(dark=dark) for role, shade in SHADES.items()}
    _draw_lines(axes, placed, colours, least=(placed.end - placed.start) / width)
    _label(axes, placed)


def said(view: TimelineView) -> str:
    """What shows a timeline where there are no pictures."""
    return text(layout(view, WIDTH))


def text(placed: Layout) -> str:
    """The summary, and a table of the last requests."""
    if not placed.lines:
        return placed.summary
    rows = [line.cells for line in placed.lines[-TEXT_ROWS:]]
    left_out = len(placed.lines) - len(rows)
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    lines = [placed.summary, _aligned(COLUMNS, widths)]
    lines += [_aligned(row, widths) for row in rows]
    if left_out:
        lines.insert(2, f"({left_out} before these)")
    return "\n".join(lines)


def page(placed: Layout, picture: str) -> str:
    """The picture and the whole table, as a part of a page that sanitisers let through."""
    source = f"data:image/png;base64,{picture}"
    shown = f'<img alt="{escape(placed.summary)}" src="{source}" style="max-width:100%">'
    if not placed.lines:
        return f"<div>{shown}</div>"
    words, numbers = escape(placed.summary), table(COLUMNS, (line.cells for line in placed.lines))
    return f"<div>{shown}<details><summary>{words}</summary>{numbers}</details></div>"


def _draw_rate(axes: Axes, placed: Layout, colours: dict[str, str]) -> None:
    _dress(axes, colours)
    xs: list[float] = []
    ys: list[float] = []
    for part in placed.rates:
        if not xs or part.x > xs[-1]:  # nothing was decoded in between
            xs += [xs[-1] if xs else part.x, part.x]
            ys += [0.0, 0.0]
        xs += [part.x, part.x + part.width]
        ys += [part.tok_s, part.tok_s]
    if xs:
        axes.plot([*xs, xs[-1]], [*ys, 0.0], color=colours["rate"], linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens/s", color=colours["text"], fontsize=8)
    axes.tick_params(labelbottom=False)


def _draw_lines(axes: Axes, placed: Layout, colours: dict[str, str], least: float) -> None:
    """Paint bands and marks, none of them narrower than `least` seconds."""
    from matplotlib.collections import PolyCollection

    _dress(axes, colours)
    boxes: dict[str, list[Any]] = {"cohort": []}
    for band in placed.bands:
        boxes["cohort"].append(
            _box(band.start, band.first, max(band.end - band.start, least), band.count)
        )
    for i, line in enumerate(placed.lines):
        for mark in line.marks:
            wide = max(mark.width, least)
            left = max(placed.start, min(mark.x, placed.end - wide))
            boxes.setdefault(mark.role, []).append(_box(left, i + mark.y, wide, mark.height))
    for role, found in boxes.items():
        axes.add_collection(
            PolyCollection(found, facecolors=colours[role], linewidths=0), autolim=False
        )
    for band in placed.bands[1:]:
        axes.axhline(band.first, color=colours["grid"], linewidth=0.5)
    axes.set_ylim(max(1, len(placed.order)), 0)
    axes.set_yticks([])
    axes.set_xticks([tick.x for tick in placed.ticks], [tick.text for tick in placed.ticks])
    if placed.end > placed.start:
        axes.set_xlim(placed.start, placed.end)


def _label(axes: Axes, placed: Layout) -> None:
    axes.set_yticks(
        [i + 0.5 for i in range(len(placed.lines))], [row.label for row in placed.lines]
    )


def _dress(axes: Axes, colours: dict[str, str]) -> None:
    axes.grid(False)  # which some styles have
    axes.set_facecolor(colours["ground"])
    axes.tick_params(colors=colours["text"], labelsize=8)
    axes.spines[:].set_color(colours["grid"])
    axes.spines[["top", "right"]].set_visible(False)


def _box(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def _aligned(cells: Sequence[str], widths: Iterable[int]) -> str:
    return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()
