"""From the engine's thread to the event loop: what is said within a moment goes over together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

MOMENT_S = 0.001
"""How long what was said first waits for what is said next."""

Delivery = tuple[Callable[[Any], None], Any]


class Post:
    """Delivers to one event loop.

    Waking the loop costs the engine's thread more than a token's text does: each time it gives up
    the interpreter, and waits until the loop has sent what came. So one cycle of the engine, with
    tokens for many clients, wakes the loop once.

    Parameters
    ----------
    loop
        Where things are delivered.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Delivery] = deque()
        self._due = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where things are delivered."""
        return self._loop

    def send(self, take: Callable[[Any], None], what: object) -> None:
        """Have `take` called on the loop, in the order of sending (any thread).

        Raises
        ------
        RuntimeError
            If the loop has ended.
        """
        self._waiting.append((take, what))
        if self._due:
            return
        self._due = True
        try:
            self._loop.call_soon_threadsafe(self._loop.call_later, MOMENT_S, self._deliver)
        except RuntimeError:
            self._due = False
            raise

    def _deliver(self) -> None:
        # First this: what is sent from here on may be taken below, but has its own delivery.
        self._due = False
        while self._waiting:
            take, what = self._waiting.popleft()
            take(what)
