"""A view in a cell's output: live while something runs, a picture at rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mtplx_kernel.widgets.pump import Pump

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

LOOK_S = 0.25
"""How often to look whether something runs."""
LATEST_S = 1.0
"""The most between two looks: one in which a picture was drawn took long, but is none of many."""
REST_S = 5.0
"""How long nothing must have run until the picture takes the live view's place."""


class LiveView(Protocol):
    """What a live view must be able to do, beside being displayed."""

    @property
    def held(self) -> bool:
        """Whether the reader has something pinned or zoomed, so that it should stay."""

    def close(self) -> None:
        """End it; nothing of it is left running."""


class Shown:
    """One output that is always true: what is saved with a notebook at rest needs no kernel.

    Parameters
    ----------
    make
        Makes a live view.
    bundle
        Makes what takes its place, by MIME type.
    busy
        Whether something runs.
    version
        Another value than before wherever something has run: a look may come too late to see it.
    gone
        Whether nothing will ever run again: then the picture is final.
    keep
        Leave the live view where it is until `close`.
    clock
        Seconds of one monotonic clock.
    """

    def __init__(
        self,
        make: Callable[[], LiveView],
        bundle: Callable[[], Mapping[str, Any]],
        busy: Callable[[], bool],
        *,
        version: Callable[[], object] = lambda: None,
        gone: Callable[[], bool] = lambda: False,
        keep: bool = False,
        rest_s: float = REST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._bundle, self._busy = make, bundle, busy
        self._version, self._gone = version, gone
        self._keep, self._rest_s, self._clock = keep, rest_s, clock
        self._view: LiveView | None = None
        self._handle: DisplayHandle | None = None
        self._pictured: object = None
        self._ran = clock()
        self._closed = False
        self._turn = threading.Lock()
        self._pump = Pump(self.look, LOOK_S, LATEST_S)

    def show(self) -> None:
        """Display it in the output of the cell that runs."""
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        if self._keep or self._busy():
            self._view = self._make()
            self._handle.display(self._view)
        else:
            self._pictured = self._version()
            self._handle.display(dict(self._bundle()), raw=True)
        self._pump.start()

    @property
    def live(self) -> bool:
        """Whether the live view is what is shown."""
        return self._view is not None

    @property
    def failure(self) -> str | None:
        """Why it is not kept up any more; None where it is, or was closed."""
        return self._pump.failure

    def look(self) -> bool:
        """Show what fits what runs; whether that changed anything."""
        with self._turn:
            if self._closed:
                return False
            if self._gone():
                self._rest()
                self._closed = True
                self._pump.stop()
                return True
            if self._busy() or (self._view is None and self._version() != self._pictured):
                self._ran = self._clock()
                return self._wake()
            over = self._clock() - self._ran >= self._rest_s
            if self._view is None or self._keep or self._view.held or not over:
                return self._view is not None
            return self._rest()

    def close(self) -> None:
        """Leave the picture in its place, for good. Closing twice does nothing."""
        try:
            with self._turn:
                if not self._closed:
                    self._closed = True
                    self._rest()
        finally:
            self._pump.stop()

    def _wake(self) -> bool:
        if self._view is None and self._handle is not None:
            self._view = self._make()
            self._handle.update(self._view)
        return True

    def _rest(self) -> bool:
        view, self._view = self._view, None
        version = self._version()
        if view is None and version == self._pictured:
            return False
        try:
            self._pictured = version
            if self._handle is not None:
                self._handle.update(dict(self._bundle()), raw=True)
        finally:
            if view is not None:
                view.close()
        return True
