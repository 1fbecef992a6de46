"""mlx-lm's BatchGenerator as a side: continuous batching, fed as requests come."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from benchmarks.arrivals import Ask, Plan
from benchmarks.served import PlanRun, Served


class Stepper(Protocol):
    """What is used of a BatchGenerator."""

    def insert(self, prompts: list[list[int]], max_tokens: list[int]) -> list[int]:
        """Queue prompts; their uids."""
        ...

    def next(self) -> tuple[list[Any], list[Any]]:
        """One step: what became of prompts, and the tokens that were decoded."""
        ...


@dataclass(slots=True)
class _Open:
    """A request under way."""

    chain: int
    place: int
    ask: Ask
    asked: float
    admitted: float | None = None
    ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)


def drive(
    plan: Plan,
    stepper: Stepper,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> PlanRun:
    """Serve a plan: before every step, insert whatever has been asked by then.

    A request counts as admitted when the step begins that first takes some of its prompt.
    """
    started = clock()
    due = [(started + chain.at, n, 0) for n, chain in enumerate(plan) if not chain.after]
    heapq.heapify(due)
    under_way: dict[int, _Open] = {}
    served: dict[tuple[int, int], Served] = {}
    while due or under_way:
        now = clock()
        while due and due[0][0] <= now:
            asked, number, place = heapq.heappop(due)
            ask = plan[number].asks[place]
            (uid,) = stepper.insert([list(ask.prompt.ids)], [ask.tokens])
            under_way[uid] = _Open(number, place, ask, asked)
        if not under_way:
            sleep(due[0][0] - now)
            continue
        prompts, decoded = stepper.next()
        arrived = clock()
        for response in prompts:
            request = under_way[response.uid]
            if request.admitted is None:
                request.admitted = now
        for response in decoded:
            request = under_way[response.uid]
            request.ids.append(response.token)
            request.arrivals.append(arrived)
            if (request.chain, request.place) == (0, 0):
                for number, chain in enumerate(plan):
                    if chain.after == len(request.ids):
                        heapq.heappush(due, (arrived + chain.at, number, 0))
            if response.finish_reason is not None:
                del under_way[response.uid]
                served[request.chain, request.place] = _served(request)
                if request.place + 1 < len(plan[request.chain].asks):
                    heapq.heappush(due, (arrived, request.chain, request.place + 1))
    return PlanRun(tuple(served[key] for key in sorted(served)))


def _served(request: _Open) -> Served:
    assert request.admitted is not None  # nothing is decoded before its prompt was taken
    return Served(
        ask=request.ask,
        asked=request.asked,
        queue_wait_s=request.admitted - request.asked,
        ids=tuple(request.ids),
        arrivals=tuple(request.arrivals),
        cycles=tuple(range(len(request.ids))),
    )


class BatchGeneratorSide:
    """mlx-lm in this process, on a thread of its own: MLX's lazy arrays belong to their thread.

    Weights are prepared as the engine prepares its own: float32 without quantisation on the CPU,
    as stored on GPUs. All settings are mlx-lm's own; its batch takes 32 rows.

    Parameters
    ----------
    folder
        An mlx-lm model folder.
    """

    name = "batchgen"

    def __init__(self, folder: Path) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlx-lm")
        self._model: Any = None
        self._thread.submit(self._load, folder).result()

    def serve(self, plan: Plan) -> PlanRun:
        """See `drive`; greedy."""
        return self._thread.submit(self._serve, plan).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.submit(self._release).result()
        self._thread.shutdown()

    def _load(self, folder: Path) -> None:
        import mlx.core as mx
        from mlx_lm.utils import load_model

        from mtplx_kernel.models.load import dense

        self._model = load_model(folder)[0]
        if mx.default_device().type == mx.DeviceType.cpu:
            self._model = dense(self._model)

    def _serve(self, plan: Plan) -> PlanRun:
        import mlx.core as mx
        from mlx_lm.generate import BatchGenerator

        generator = BatchGenerator(self._model)
        try:
            return drive(plan, generator)
        finally:
            # It starts one step more than it needs: that must not run into the next side's time.
            mx.synchronize(generator.stream)
            generator.close()

    def _release(self) -> None:
        import mlx.core as mx

        self._model = None
        mx.clear_cache()
        mx.clear_streams()
