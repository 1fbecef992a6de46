"""The timeline, live: requests as they wait, prefill and decode, cohort by cohort."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import traitlets

from mtplx_kernel.engine.timeline import Timeline, TimelineView
from mtplx_kernel.widgets.assets import script, style
from mtplx_kernel.widgets.fresh import FreshWidget
from mtplx_kernel.widgets.layout import as_data, layout, line_data
from mtplx_kernel.widgets.live import Shown
from mtplx_kernel.widgets.static import WIDTH, bundle

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

INTERVAL_S = 0.2
"""Least time between two messages: at most five a second."""
SETTLE_S = 3.0
"""Least time between two messages about requests that have ended."""
LATE_S = 1.0
"""A request that ended may be seen as open for no longer than this afterwards."""


class TimelineWidget(FreshWidget):
    """A live chart of a timeline; `close` ends it.

    Requests that have ended are sent again only when another one has, and not every time; what is
    sent each time tells of the open ones, the order of the lines, the cohorts and the total rate.

    Parameters
    ----------
    timeline
        What to show.
    """

    _esm = script("timeline.js")
    _css = style("timeline.css")

    settled = traitlets.Unicode("[]").tag(sync=True)
    """JSON: the lines of requests that have ended."""
    live = traitlets.Unicode("{}").tag(sync=True)
    """JSON: all else."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(INTERVAL_S)
        self._timeline = timeline
        self._zero: float | None = None
        self._ended: dict[str, str] = {}
        self._settled_at = self._since = float("-inf")
        self.begin()

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
        version=lambda: timeline.opened,
        gone=gone,
        keep=keep,
    )
