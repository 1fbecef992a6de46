"""The inspector, live: one request, its tokens by how they came, and its cycles."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import anywidget
import traitlets

from mtplx_kernel.widgets.live import Shown
from mtplx_kernel.widgets.palette import css
from mtplx_kernel.widgets.pump import Pump
from mtplx_kernel.widgets.trace_pages import as_data, bundle
from mtplx_kernel.widgets.tracing import Tracer, tracer_of

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.engine.request import Generation

INTERVAL_S = 0.5
"""Least time between two messages."""
STYLE = """
.mtplx-inspector { color: var(--mtplx-text); background: var(--mtplx-ground); max-width: 100%;
  font: 12px/1.4 var(--jp-ui-font-family, system-ui, sans-serif); }
.mtplx-inspector p { margin: 4px; overflow-wrap: anywhere; }
.mtplx-inspector .text {
  max-height: 22em; overflow: auto; margin: 4px; padding: 6px;
  font: 13px/1.6 var(--jp-code-font-family, monospace);
  white-space: pre-wrap; overflow-wrap: anywhere;
  background: var(--mtplx-ground); color: var(--mtplx-text); border: 1px solid var(--mtplx-grid);
}
.mtplx-inspector [data-kind] { background: var(--ground); color: var(--mtplx-text); }
.mtplx-inspector i { text-decoration: underline dotted; }
.mtplx-inspector .key { margin-right: 12px; padding: 0 4px; }
.mtplx-inspector .chosen { outline: 2px solid var(--mtplx-focus); }
.mtplx-inspector .strip { display: block; width: 100%; height: 48px; }
.mtplx-inspector button { font: inherit; color: inherit; background: transparent; margin: 4px;
  border: 1px solid var(--mtplx-muted); border-radius: 3px; padding: 1px 8px; cursor: pointer; }
.mtplx-inspector :focus-visible { outline: 2px solid var(--mtplx-focus); }
.mtplx-inspector .hint { color: var(--mtplx-muted); min-height: 2.8em; }
"""


class InspectorWidget(anywidget.AnyWidget):
    """One request, followed until it ends or `close`.

    Parameters
    ----------
    tracer
        What follows it.
    """

    _esm = (Path(__file__).parent / "inspector.js").read_text(encoding="utf-8")
    _css = css(".mtplx") + STYLE

    state = traitlets.Unicode("{}").tag(sync=True)
    """JSON: a summary, the tokens with how they came, and the cycles."""
    held = traitlets.Bool(False).tag(sync=True)
    """Whether the reader has chosen a cycle."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer
        self.refresh()
        self._pump = Pump(self.refresh, INTERVAL_S)
        self._pump.start()
        weakref.finalize(self, self._pump.stop).atexit = False

    def refresh(self) -> bool:
        """Send what is new; whether there was anything."""
        said = json.dumps(as_data(self._tracer.trace()))
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
