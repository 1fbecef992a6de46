"""The picture of a comparison: the speed of each setting, on a ground that suits any theme."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from io import BytesIO

GROUND, INK = "#f6f6f4", "#222222"
BAR, BEST = "#9aa7b8", "#1f6feb"


@dataclass(frozen=True, slots=True)
class Bar:
    """One setting: its name, its ratio to the reference, and whether it is the best."""

    name: str
    ratio: float
    tok_s: float
    best: bool

    @property
    def label(self) -> str:
        """What stands at its end."""
        return f"{self.ratio:.2f} ({self.tok_s:.1f} tokens/s){', best' if self.best else ''}"


# A front end asks for a page and for the picture alone: one drawing serves both.
@lru_cache(maxsize=1)
def picture(title: str, axis: str, bars: tuple[Bar, ...]) -> bytes | None:
    """Draw one bar a setting; None where matplotlib is not installed.

    Colour is not needed to read it: the best bar says so in words.

    Parameters
    ----------
    title
        Above the bars.
    axis
        What a ratio of 1 is.
    bars
        From top to bottom.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    height = 1.1 + 0.36 * len(bars)
    figure = Figure(figsize=(7, height), dpi=120, layout="constrained", facecolor=GROUND)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor=GROUND)
    colours = [BEST if bar.best else BAR for bar in bars]
    drawn = axes.barh([bar.name for bar in bars], [bar.ratio for bar in bars], color=colours)
    axes.bar_label(drawn, [bar.label for bar in bars], padding=4, color=INK)
    axes.axvline(1.0, color=INK, linewidth=1, linestyle=":")
    axes.invert_yaxis()
    axes.margins(x=0.35)
    axes.set_xlabel(axis, color=INK)
    axes.set_title(title, color=INK)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    target = BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def as_html(drawn: bytes | None, description: str) -> str:
    """A picture as an element of a page, with its description for those who do not see it."""
    if drawn is None:
        return ""
    source = f"data:image/png;base64,{base64.b64encode(drawn).decode()}"
    return f'<img alt="{escape(description)}" src="{source}" style="max-width:100%">'
