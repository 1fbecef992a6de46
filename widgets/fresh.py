"""What the live views have in common: a thread keeps each fresh until it is closed."""

from __future__ import annotations

import weakref

import anywidget
import traitlets

from mtplx_kernel.widgets.pump import Pump
from mtplx_kernel.widgets.subshell import heard_while_busy


class FreshWidget(anywidget.AnyWidget):
    """A widget that calls its own `refresh` on a thread, from `begin` on until `close`.

    Parameters
    ----------
    interval_s
        The least time between two calls.
    """

    held = traitlets.Bool(False).tag(sync=True)
    """Whether the reader has pinned, chosen or zoomed, so that it should stay."""

    def __init__(self, interval_s: float) -> None:
        self._pump = Pump(self.refresh, interval_s)
        super().__init__()
        heard_while_busy(self)

    def refresh(self) -> bool:
        """Send what is new; whether there was anything."""
        raise NotImplementedError

    def begin(self) -> None:
        """Send all there is, and then what is new."""
        self.refresh()
        self._pump.start()
        weakref.finalize(self, self._pump.stop).atexit = False

    def close(self) -> None:
        """End the thread and the view, with its layout: the registry of widgets keeps each."""
        self._pump.stop()
        self.layout.close()
        super().close()

    @property
    def failure(self) -> str | None:
        """Why it is not kept up any more; None where it is, or was closed."""
        return self._pump.failure
