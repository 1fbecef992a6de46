"""The picture of a tuning: the speed of each setting, on a ground that suits any theme."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtplx_kernel.checks.tune_report import Setting, TuneRow

GROUND, INK = "#f6f6f4", "#222222"
BAR, BEST = "#9aa7b8", "#1f6feb"


# A front end asks for a page and for the picture alone: one drawing serves both.
@lru_cache(maxsize=1)
def picture(model: str, rows: tuple[TuneRow, ...], best: Setting) -> bytes | None:
    """Draw one bar a setting, its ratio to mode ar; None where matplotlib is not installed.

    Colour is not needed to read it: the best bar says so in words.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    height = 1.1 + 0.36 * len(rows)
    figure = Figure(figsize=(7, height), dpi=120, layout="constrained", facecolor=GROUND)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor=GROUND)
    ratios = [row.ratio for row in rows]
    colours = [BEST if row.setting == best else BAR for row in rows]
    bars = axes.barh([row.setting.name for row in rows], ratios, color=colours)
    labels = [
        f"{row.ratio:.2f} ({row.tok_s:.1f} tokens/s){', best' if row.setting == best else ''}"
        for row in rows
    ]
    axes.bar_label(bars, labels, padding=4, color=INK)
    axes.axvline(1.0, color=INK, linewidth=1, linestyle=":")
    axes.invert_yaxis()
    axes.margins(x=0.35)
    axes.set_xlabel("times the speed of mode ar", color=INK)
    axes.set_title(model, color=INK)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    target = BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()
