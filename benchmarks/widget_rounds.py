"""What the kernel of the benchmark of views runs: the same requests, as often as it is asked."""

from __future__ import annotations

import hashlib
import json

import mtplx_kernel as mk
from benchmarks.arrivals import closed
from benchmarks.loads import LOADS
from benchmarks.machine import describe
from benchmarks.scheduler_side import SchedulerSide, settings
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.scheduling.options import SchedulerOptions

SEED = 5


class Rounds:
    """A plan of chats for the engine that the kernel has loaded.

    Parameters
    ----------
    mode
        The scheduler mode; its width is the number of clients.
    clients, requests
        How many ask at a time, and how often each of them does.
    max_tokens
        Most tokens of an answer.
    """

    def __init__(self, mode: str, clients: int, requests: int, max_tokens: int) -> None:
        engine = mk.current()
        assert engine is not None
        self._engine = engine
        wished = settings(mode, clients, SchedulerOptions().itl_ms)
        self._side = SchedulerSide(engine, "engine", wished)
        encoder = PromptEncoder(engine.tokenizer, engine.facts)
        asks = LOADS["chat"].asks(encoder.encode, clients * requests, max_tokens, SEED)
        self._plan = closed(asks, clients)

    def machine(self) -> str:
        """The machine as a JSON object."""
        blas = self._engine.status()["blas"]
        precision = self._engine.facts.precision
        return json.dumps(describe(precision, blas["description"], blas["threads"]))

    def run(self) -> str:
        """Answer the plan once; what came of it as a JSON object."""
        run = self._side.serve(self._plan)
        ids = repr([served.ids for served in run.served])
        return json.dumps(
            {
                "seconds": run.seconds,
                "tokens": run.tokens,
                "tok_s": run.tok_s,
                "ids": hashlib.sha256(ids.encode()).hexdigest(),
            }
        )
