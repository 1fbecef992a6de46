"""When a request is sent again: never one that an endpoint may have begun to answer."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from mtplx_kernel.errors import EndpointError, EndpointLost, MTPLXError

BUSY = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a request is sent again, and after what pauses.

    Only statuses 429 and 503 and connections that could not be made are tried again: then the
    endpoint has not begun. A pause is what the endpoint asks for by Retry-After, and by chance up
    to half longer; else each is twice the one before, and up to half shorter. So clients that were
    refused together do not come back together.

    Attributes
    ----------
    most
        How many tries follow the first one; 0 for none.
    first_s, longest_s
        The first pause and the longest, in seconds. An endpoint that asks for a longer one is not
        tried again.
    chance
        A number from 0 to 1 for each pause.
    sleep
        What waits.
    """

    most: int = 5
    first_s: float = 0.25
    longest_s: float = 30.0
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def pause_s(self, tries: int, error: MTPLXError) -> float | None:
        """How long to wait after so many tries, the last of which failed; None to give up."""
        if tries > self.most or not _not_begun(error):
            return None
        asked = error.retry_after_s if isinstance(error, EndpointError) else None
        if asked is not None:
            return asked * (1 + self.chance() / 2) if asked <= self.longest_s else None
        pause: float = min(self.longest_s, self.first_s * 2 ** (tries - 1))
        return pause * (1 - self.chance() / 2)


def _not_begun(error: MTPLXError) -> bool:
    if isinstance(error, EndpointLost):
        return not error.connected
    return isinstance(error, EndpointError) and error.status in BUSY
