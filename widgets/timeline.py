"""The timeline, live: requests as they wait, prefill and decode, cohort by cohort."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from mtplx_kernel.engine.timeline import Timeline, TimelineView
from mtplx_kernel.widgets.layout import as_data, layout, line_data
from mtplx_kernel.widgets.live import Shown
from mtplx_kernel.widgets.palette import css
from mtplx_kernel.widgets.pump import Pump
from mtplx_kernel.widgets.static import WIDTH, bundle

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

INTERVAL_S = 0.2
"""Least time between two messages: at most five a second."""
SETTLE_S = 3.0
"""Least time between two messages about requests that have ended."""
LATE_S = 1.0
"""A request that ended may be seen as open for no longer than this afterwards."""
STYLE = """
.mtplx-timeline { font: 12px/1.4 var(--jp-ui-font-family, system-ui, sans-serif);
  color: var(--mtplx-text); background: var(--mtplx-ground); max-width: 100%; }
.mtplx-timeline canvas { display: block; width: 100%; touch-action: none; cursor: crosshair; }
.mtplx-timeline canvas:focus-visible { outline: 2px solid var(--mtplx-focus); }
.mtplx-timeline .bar { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: center;
  padding: 2px 4px; }
.mtplx-timeline button { font: inherit; color: inherit; background: transparent;
  border: 1px solid var(--mtplx-muted); border-radius: 3px; padding: 1px 8px; cursor: pointer; }
.mtplx-timeline button[aria-pressed="true"] { border-color: var(--mtplx-focus);
  box-shadow: inset 0 0 0 1px var(--mtplx-focus); }
.mtplx-timeline .key { display: inline-flex; align-items: center; gap: 4px; }
.mtplx-timeline .key i { width: 10px; height: 10px; display: inline-block; }
.mtplx-timeline .tells { margin: 0; padding: 2px 4px; min-height: 1.4em; overflow-wrap: anywhere; }
.mtplx-timeline .said { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap; }
"""


class TimelineWidget(anywidget.AnyWidget):
    """A live chart of a timeline; `close` ends it.

    Requests that have ended are sent again only when another one has, and not every time; what is
    sent each time tells of the open ones, the order of the lines, the cohorts and the total rate.

    Parameters
    ----------
    timeline
        What to show.
    """

    _esm = (Path(__file__).parent / "timeline.js").read_text(encoding="utf-8")
    _css = css(".mtplx") + STYLE

    settled = traitlets.Unicode("[]").tag(sync=True)
    """JSON: the lines of requests that have ended."""
    live = traitlets.Unicode("{}").tag(sync=True)
    """JSON: all else."""
    held = traitlets.Bool(False).tag(sync=True)
    """Whether the reader has pinned or zoomed."""

    def __init__(self, timeline: Timeline, **options: Any) -> None:
        self._pump = Pump(self.refresh, INTERVAL_S)
        super().__init__(**options)
        self._timeline = timeline
        self._zero: float | None = None
        self._ended: dict[str, str] = {}
        self._settled_at = self._since = float("-inf")
        self.refresh()
        self._pump.start()
        weakref.finalize(self, self._pump.stop).atexit = False

    def refresh(self) -> bool:
        """Send what is new; whether there was anything."""
        view = self._timeline.snapshot(self._since)
        if self._zero is None or not view.order:
            self._zero = view.start
        placed = layout(view, WIDTH, self._zero)
        lines = {line.request_id: json.dumps(line_data(line)) for line in placed.lines}
        over = {r.request_id for r in view.requests if r.finish_reason is not None}
        fresh = over - self._ended.keys()
        if fresh and view.now - self._settled_at >= SETTLE_S:
            self._settle(view, {request_id: lines[request_id] for request_id in fresh})
            fresh = set()
        shown = [lines[r.request_id] for r in view.requests if r.request_id not in self._ended]
        running = bool(view.waiting or view.running)
        head = json.dumps({**as_data(placed), "running": running, "tok_s": round(view.tok_s, 1)})
        said = f'{{"head":{head},"lines":[{",".join(shown)}]}}'
        changed = said != self.live
        if changed:
            self.live = said
        return changed or bool(fresh)

    def close(self) -> None:
        """End the thread and the view."""
        self._pump.stop()
        super().close()

    @property
    def failure(self) -> str | None:
        """Why it is not kept up any more; None where it is, or was closed."""
        return self._pump.failure

    def _settle(self, view: TimelineView, new: dict[str, str]) -> None:
        """Send the ended requests, the new ones among them, without those that are forgotten."""
        kept = {**self._ended, **new}
        self._ended = {name: kept[name] for name in view.order if name in kept}
        self.settled = f"[{','.join(self._ended.values())}]"
        self._settled_at, self._since = view.now, view.now - LATE_S


def shown(engine: Engine, *, keep: bool = False, busy: Callable[[], bool] | None = None) -> Shown:
    """An engine's timeline for a cell's output; it does not keep the engine alive.

    Parameters
    ----------
    keep
        Stay live until it is closed, also while nothing runs.
    busy
        Whether something runs; None asks the timeline.
    """
    timeline, alive = engine.timeline, weakref.ref(engine)

    def gone() -> bool:
        there = alive()
        return there is None or there.closed

    return Shown(
        lambda: TimelineWidget(timeline),
        lambda: bundle(timeline.snapshot()),
        busy or (lambda: timeline.busy),
        gone=gone,
        keep=keep,
    )
