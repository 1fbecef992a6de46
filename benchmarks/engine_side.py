"""The engine's side of a benchmark, in one generation mode."""

from __future__ import annotations

import time
from collections.abc import Sequence

import mtplx_kernel as mk
from benchmarks.measure import Run


class EngineSide:
    """Requests to a loaded engine, as a user's code sends them.

    Parameters
    ----------
    engine
        Used by nobody else while a run lasts.
    mode
        "ar" or "mtp"; also the side's name.
    """

    def __init__(self, engine: mk.Engine, mode: str) -> None:
        self.name = mode
        self._engine = engine

    def run(self, prompt_ids: Sequence[int], max_tokens: int) -> Run:
        """Answer greedily; times are taken where tokens reach a callback, from before the submit.

        Raises
        ------
        RequestFailed
            If the request ended with an error.
        """
        arrivals: list[tuple[float, int]] = []

        def arrived(token_id: int, text: str) -> None:
            # This request's window is the newest: one request runs at a time.
            cycle = self._engine.timeline.windows()[-1].verify_calls
            arrivals.append((time.perf_counter(), cycle))

        started = time.perf_counter()
        generation = self._engine.generate(
            list(prompt_ids),
            mode=self.name,
            max_tokens=max_tokens,
            ignore_eos=True,
            on_token=arrived,
        )
        first_at, first_cycle = arrivals[0]
        return Run(
            ids=generation.token_ids,
            ttft_s=first_at - started,
            decode_s=arrivals[-1][0] - first_at,
            block=sum(cycle == first_cycle for _, cycle in arrivals),
            tokens_per_cycle=generation.stats.tokens_per_cycle or 0.0,
        )
