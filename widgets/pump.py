"""A thread that keeps a view fresh: seldom, cheaply, and no longer than the view lives."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable

logger = logging.getLogger(__name__)

SHARE = 0.003
"""Of a processor's time, so much is spent on one view, and more only by looks that take long."""
IDLE_S = 0.5
"""How long to wait while nothing changes."""
LONGEST_S = 5.0
"""How long to wait at most, however long a look took."""


class Pump:
    """Calls a method of a view on a thread of its own until it is stopped, or the view is gone.

    Parameters
    ----------
    tick
        A bound method; whether it found anything new. Its object is not kept alive.
    interval_s, longest_s
        The least time between two calls, and the most.
    """

    def __init__(
        self, tick: Callable[[], bool], interval_s: float, longest_s: float = LONGEST_S
    ) -> None:
        self._tick = weakref.WeakMethod(tick)
        self._interval, self._longest = interval_s, longest_s
        self._stopped = threading.Event()
        self.failure: str | None = None
        """What ended it before its time."""
        self._thread = threading.Thread(
            target=self._run, name="mtplx-view", daemon=True, args=(self._stopped,)
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; once this returns nothing is called any more. Stopping twice does nothing."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def _run(self, stopped: threading.Event) -> None:
        pause = self._interval
        while not stopped.wait(pause):
            began = time.thread_time()
            try:
                changed = self._called()
            except Exception as error:  # nobody waits for it who could be told
                self.failure = f"{type(error).__name__}: {error}"
                logger.error("a view is no longer kept fresh: %s", self.failure)
                return
            if changed is None:
                return
            spent = time.thread_time() - began
            pause = max(self._interval if changed else IDLE_S, min(spent / SHARE, self._longest))

    def _called(self) -> bool | None:
        """Whether there was anything new; None where the view is gone."""
        tick = self._tick()
        return None if tick is None else tick()
