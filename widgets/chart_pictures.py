"""The charts as one picture, drawn from the same marks as the live view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mtplx_kernel.widgets.charts import HEIGHT, WIDTH, Bar, Chart, Dot, Line, Mark
from mtplx_kernel.widgets.palette import SHADES

if TYPE_CHECKING:
    from mtplx_kernel.widgets.figures import ShownFigure

COLUMNS = 2
INCH = 80.0
"""Units of a chart in an inch of the picture."""
FONT = 10 * 72 / INCH
ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def figure(charts: Sequence[Chart], *, dark: bool = False) -> ShownFigure:
    """Draw charts beside and below each other."""
    from mtplx_kernel.widgets.figures import ShownFigure

    columns = min(COLUMNS, len(charts))
    rows = -(-len(charts) // columns)
    made = ShownFigure(figsize=(columns * WIDTH / INCH, rows * HEIGHT / INCH), dpi=110)
    made.set_facecolor(SHADES["ground"].on(dark=dark))
    for n, chart in enumerate(charts):
        row, column = divmod(n, columns)
        box = (column / columns, 1 - (row + 1) / rows, 1 / columns, 1 / rows)
        axes = made.add_axes(box)
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(HEIGHT, 0)
        axes.set_axis_off()
        for mark in chart.marks:
            _draw(axes, mark, SHADES[mark.role].on(dark=dark))
    return made


def png(charts: Sequence[Chart], *, dark: bool = False) -> bytes:
    """The picture of some charts as PNG."""
    return figure(charts, dark=dark).png()


def _draw(axes: Any, mark: Mark, colour: str) -> None:
    if isinstance(mark, Bar):
        from matplotlib.patches import Rectangle

        fill = "none" if mark.hollow else colour
        corner = (mark.x, mark.y)
        axes.add_patch(
            Rectangle(corner, mark.width, mark.height, facecolor=fill, edgecolor=colour, lw=1)
        )
    elif isinstance(mark, Line):
        xs, ys = zip(*mark.points, strict=True)
        axes.plot(xs, ys, color=colour, linewidth=1.4, linestyle="--" if mark.dashed else "-")
    elif isinstance(mark, Dot):
        axes.plot([mark.x], [mark.y], "o", color=colour, markersize=mark.radius * 2 * 72 / INCH)
    else:
        side = ANCHORS[mark.anchor]
        text = mark.text.replace("$", r"\$")  # no mathematics
        axes.text(mark.x, mark.y, text, color=colour, ha=side, va="baseline", fontsize=FONT)
