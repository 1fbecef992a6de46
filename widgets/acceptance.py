"""The acceptance view, live: how drafts fare by depth, by drafter and over time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anywidget
import traitlets

from mtplx_kernel.widgets.acceptance_pages import Followed, bundle
from mtplx_kernel.widgets.charts import charts
from mtplx_kernel.widgets.live import Shown
from mtplx_kernel.widgets.palette import css
from mtplx_kernel.widgets.pump import Pump

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

INTERVAL_S = 0.5
"""Least time between two messages."""
STYLE = """
.mtplx-acceptance { color: var(--mtplx-text); background: var(--mtplx-ground); max-width: 100%;
  font: 12px/1.4 var(--jp-ui-font-family, system-ui, sans-serif); }
.mtplx-acceptance .grid { display: grid; gap: 8px;
  grid-template-columns: repeat(auto-fit, minmax(min(260px, 100%), 1fr)); }
.mtplx-acceptance p { margin: 4px; overflow-wrap: anywhere; }
.mtplx-acceptance .hint { color: var(--mtplx-muted); min-height: 1.4em; }
.mtplx-acceptance svg { width: 100%; height: auto; max-width: 420px; font-size: 10px; }
.mtplx-acceptance svg:focus-visible { outline: 2px solid var(--mtplx-focus); }
.mtplx-acceptance .filled { fill: var(--mark); }
.mtplx-acceptance .hollow { fill: transparent; stroke: var(--mark); }
.mtplx-acceptance .line { fill: none; stroke: var(--mark); stroke-width: 1.5; }
.mtplx-acceptance .dashed { stroke-dasharray: 4 3; }
.mtplx-acceptance .told { stroke: var(--mtplx-focus); stroke-width: 2; }
"""


class AcceptanceWidget(anywidget.AnyWidget):
    """Charts of an engine's drafts that follow it until `close`.

    Parameters
    ----------
    followed
        Whose requests are counted.
    """

    _esm = (Path(__file__).parent / "acceptance.js").read_text(encoding="utf-8")
    _css = css(".mtplx") + STYLE

    state = traitlets.Unicode("{}").tag(sync=True)
    """JSON: a summary, and the charts with their marks."""
    held = traitlets.Bool(False).tag(sync=True)
    """Whether the reader has pinned something."""

    def __init__(self, followed: Followed) -> None:
        super().__init__()
        self._followed = followed
        self.refresh()
        self._pump = Pump(self.refresh, INTERVAL_S)
        self._pump.start()
        weakref.finalize(self, self._pump.stop).atexit = False

    def refresh(self) -> bool:
        """Send what is new; whether there was anything."""
        view = self._followed.view()
        drawn = [chart.as_data() for chart in charts(view)]
        said = json.dumps({"summary": view.summary, "charts": drawn})
        changed = said != self.state
        if changed:
            self.state = said
        return changed

    def close(self) -> None:
        """End the thread and the view."""
        self._pump.stop()
        super().close()

    @property
    def failure(self) -> str | None:
        """Why it is not kept up any more; None where it is, or was closed."""
        return self._pump.failure


def shown(engine: Engine, *, keep: bool = False, busy: Callable[[], bool] | None = None) -> Shown:
    """An engine's acceptance for a cell's output; it does not keep the engine alive.

    Parameters
    ----------
    keep
        Stay live until it is closed, also while nothing runs.
    busy
        Whether something runs; None asks the timeline.
    """
    followed, timeline = Followed(engine), engine.timeline
    return Shown(
        lambda: AcceptanceWidget(followed),
        lambda: bundle(followed.view()),
        busy or (lambda: timeline.busy),
        gone=lambda: followed.gone,
        keep=keep,
    )
