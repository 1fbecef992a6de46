"""The acceptance view where it is not live: a picture, tables and text, of the same charts."""

from __future__ import annotations

import base64
import threading
import weakref
from html import escape
from typing import TYPE_CHECKING

from mtplx_kernel.widgets.chart_pictures import png
from mtplx_kernel.widgets.charts import charts
from mtplx_kernel.widgets.rates import AcceptanceView, Share, counted
from mtplx_kernel.widgets.tables import table
from mtplx_kernel.widgets.tally import AcceptanceTally

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

HEADER = ("drafts", "cycles", "drafted", "right", "share")


class Followed:
    """An engine whose drafts are counted as they come; it is not kept alive.

    Parameters
    ----------
    engine
        What its timeline remembers is counted too.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._timeline = engine.timeline
        self._status = engine.status()
        self._tally = AcceptanceTally()
        # A view's thread and whoever asks for its picture may come at once.
        self._lock = threading.Lock()

    @property
    def gone(self) -> bool:
        """Whether nothing will come any more."""
        engine = self._engine()
        return engine is None or engine.closed

    def view(self) -> AcceptanceView:
        """All numbers, as they are now; costs and depth as they were when the engine was open."""
        engine = self._engine()
        with self._lock:
            if engine is not None and not engine.closed:
                self._status = engine.status()
            self._tally.take(self._timeline.windows())
            return self._tally.view(self._status)


def bundle(view: AcceptanceView) -> dict[str, str]:
    """All forms of a view by their MIME types, as a notebook keeps them.

    The picture stands in the page too: see `mtplx_kernel.widgets.static.bundle`.
    """
    picture = base64.b64encode(png(charts(view))).decode()
    return {
        "image/png": picture,
        "text/html": as_html(view, picture),
        "text/plain": as_text(view),
    }


def as_text(view: AcceptanceView) -> str:
    """The same in lines."""
    lines = [view.summary]
    rows = _rows(view)
    if rows:
        shown = [HEADER, *rows]
        widths = [max(len(row[n]) for row in shown) for n in range(len(HEADER))]
        lines += [
            "  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in shown
        ]
    return "\n".join([*lines, *_facts(view)])


def as_html(view: AcceptanceView, picture: str) -> str:
    """The same as a page, with a PNG in base64 that its description stands for."""
    description = " ".join(chart.aria for chart in charts(view))
    rows = _rows(view)
    numbers = table(HEADER, rows) if rows else ""
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(view))
    return (
        f'<p><img alt="{escape(description)}" style="max-width:100%" '
        f'src="data:image/png;base64,{picture}"></p><p>{escape(view.summary)}</p>'
        f"<details><summary>Numbers</summary>{numbers}<ul>{facts}</ul></details>"
    )


def _rows(view: AcceptanceView) -> list[tuple[str, ...]]:
    by_depth = [_cells(f"depth {share.name}", share) for share in view.by_depth]
    return by_depth + [_cells(f"by {share.name}", share) for share in view.by_drafter]


def _cells(name: str, share: Share) -> tuple[str, ...]:
    numbers = (share.cycles, share.drafted, share.accepted)
    return (name, *(str(n) for n in numbers), f"{share.share:.0%}")


def _facts(view: AcceptanceView) -> list[str]:
    facts = [f"depth in force: {view.in_force}"]
    if view.depths:
        facts.append(f"drafts a cycle in mode mtp: {view.chosen:.2f} on average")
    if view.costs:
        curve = ", ".join(f"{point.ms:.3g} ms for {point.tokens}" for point in view.costs)
        facts.append(
            f"a forward of one row takes {curve} tokens, {view.chosen_ms:.3g} ms as chosen"
        )
    if view.missed:
        facts.append(f"{counted(view.missed, 'cycle')} not counted: forgotten too soon")
    return facts
