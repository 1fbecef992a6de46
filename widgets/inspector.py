"""The inspector, live: one request, its tokens by how they came, and its cycles."""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING

import traitlets

from mtplx_kernel.widgets.assets import script, style
from mtplx_kernel.widgets.fresh import FreshWidget
from mtplx_kernel.widgets.live import Shown
from mtplx_kernel.widgets.trace_pages import as_data, bundle
from mtplx_kernel.widgets.tracing import Tracer, tracer_of

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.engine.request import Generation

INTERVAL_S = 0.5
"""Least time between two messages."""


class InspectorWidget(FreshWidget):
    """One request, followed until it ends or `close`.

    Parameters
    ----------
    tracer
        What follows it.
    """

    _esm = script("inspector.js")
    _css = style("inspector.css")

    state = traitlets.Unicode("{}").tag(sync=True)
    """JSON: a summary, the tokens with how they came, and the cycles."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(INTERVAL_S)
        self._tracer = tracer
        self.begin()

    def refresh(self) -> bool:
        """Send what is new; whether there was anything."""
        said = json.dumps(as_data(self._tracer.trace()))
        changed = said != self.state
        if changed:
            self.state = said
        return changed


def shown(engine: Engine, request: Generation | str | None = None, *, keep: bool = False) -> Shown:
    """One request of an engine for a cell's output; it does not keep the engine alive.

    Parameters
    ----------
    request
        Its result, or its id; None takes the newest request.
    keep
        Stay live until it is closed, also once the request has ended.

    Raises
    ------
    InvalidRequest
        If no request of that id is remembered.
    """
    tracer, alive = tracer_of(engine, request), weakref.ref(engine)

    def gone() -> bool:
        there = alive()
        return there is None or there.closed

    return Shown(
        lambda: InspectorWidget(tracer),
        lambda: bundle(tracer.trace()),
        lambda: tracer.running,
        gone=gone,
        keep=keep,
    )
