"""Waiting in slices, so that a keyboard interrupt is never late.

Python runs signal handlers on the main thread, between two of its instructions. A lock wakes it for
that only if the signal comes while it sleeps there and is delivered to it: one that comes just
before, or to another thread, would wait for the lock.
"""

from __future__ import annotations

import math
import threading
import time

SLICE_S = 0.05


def wait_for(event: threading.Event, timeout: float | None = None) -> bool:
    """Wait for an event, at most `timeout` seconds; whether it has come."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    while not event.wait(max(0.0, min(SLICE_S, end - time.monotonic()))):
        if time.monotonic() >= end:
            return event.is_set()
    return True


def join(thread: threading.Thread) -> None:
    """Wait for a thread's end."""
    while thread.is_alive():
        thread.join(SLICE_S)
