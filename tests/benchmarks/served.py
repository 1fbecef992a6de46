"""Requests and answers made by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.arrivals import Ask
from benchmarks.measure import EncodedPrompt
from benchmarks.served import Served

PROMPTS = [EncodedPrompt(name, "chat", (n, n + 1)) for n, name in enumerate("pqrstu", start=10)]
ASKS = [Ask(prompt, 4) for prompt in PROMPTS]


def served(
    *arrivals: float, asked: float = 0.0, queued: float = 0.0, ask: Ask = ASKS[0], **known: Any
) -> Served:
    ids = tuple(range(len(arrivals)))
    cycles = tuple(range(len(arrivals)))
    facts = {"ids": ids, "cycles": cycles, **known}
    return Served(ask=ask, asked=asked, queue_wait_s=queued, arrivals=arrivals, **facts)
