"""Matplotlib figures that a notebook shows where they are a cell's value."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

COLOURS = 64
"""As many as flat colours with soft edges need: a file of a third of the size looks the same."""


class ShownFigure(Figure):
    """A figure that belongs to no window: IPython shows others only once pyplot was imported.

    Parameters
    ----------
    words
        What it shows, for those who read text; without it matplotlib's own.
    options
        What `matplotlib.figure.Figure` takes.
    """

    def __init__(self, words: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._words = words

    def __repr__(self) -> str:
        return self._words or super().__repr__()

    def png(self) -> bytes:
        """The figure as a PNG file."""
        canvas = FigureCanvasAgg(self)
        canvas.draw()
        size = canvas.get_width_height()
        drawn = Image.frombuffer("RGBA", size, bytes(canvas.buffer_rgba())).convert("RGB")
        target = BytesIO()
        # By likeness: where the commonest colours count, what failed would be brown like the rest.
        few = drawn.quantize(COLOURS, Image.Quantize.FASTOCTREE)
        few.save(target, format="PNG", optimize=True)
        return target.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()
