"""The acceptance view, live: how drafts fare by depth, by drafter and over time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import traitlets

from mtplx_kernel.widgets.acceptance_pages import Followed, bundle
from mtplx_kernel.widgets.assets import script, style
from mtplx_kernel.widgets.charts import charts
from mtplx_kernel.widgets.fresh import FreshWidget
from mtplx_kernel.widgets.live import Shown

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

INTERVAL_S = 0.5
"""Least time between two messages."""


class AcceptanceWidget(FreshWidget):
    """Charts of an engine's drafts that follow it until `close`.

    Parameters
    ----------
    followed
        Whose requests are counted.
    """

    _esm = script("acceptance.js")
    _css = style("acceptance.css")

    state = traitlets.Unicode("{}").tag(sync=True)
    """JSON: a summary, and the charts with their marks."""

    def __init__(self, followed: Followed) -> None:
        super().__init__(INTERVAL_S)
        self._followed = followed
        self.begin()

    def refresh(self) -> bool:
        """Send what is new; whether there was anything."""
        view = self._followed.view()
        drawn = [chart.as_data() for chart in charts(view)]
        said = json.dumps({"summary": view.summary, "charts": drawn})
        changed = said != self.state
        if changed:
            self.state = said
        return changed


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
        version=lambda: timeline.opened,
        gone=lambda: followed.gone,
        keep=keep,
    )
