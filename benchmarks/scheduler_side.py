"""The engine in one scheduler mode as a side: users on threads of their own, as in real use."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import mtplx_kernel as mk
from benchmarks.arrivals import Ask, Chain, Plan
from benchmarks.measure import BenchmarkFailed
from benchmarks.served import PlanRun, Served
from mtplx_kernel.caching.prefix import PrefixCache
from mtplx_kernel.engine import intake
from mtplx_kernel.engine.engine import PREFIX_MB
from mtplx_kernel.engine.opened import Opened
from mtplx_kernel.engine.request import Hooks
from mtplx_kernel.errors import MTPLXError
from mtplx_kernel.scheduling.options import TAKEN, SchedulerMode

LEAD_S = 0.02
"""From starting the users' threads to the plan's start: none may begin late."""


def settings(mode: str, width: int, itl_ms: float) -> dict[str, Any]:
    """What `Engine.configure` is told for a mode: of these values, those that it takes."""
    wished = {"width": width, "itl_ms": itl_ms, "experimental": True}
    taken = TAKEN[SchedulerMode(mode)]
    return {"scheduler": mode} | {name: v for name, v in wished.items() if name in taken}


class Starts:
    """When each chain of a plan begins; those that wait for tokens are told of them.

    Parameters
    ----------
    started
        The plan's start, in seconds of `time.perf_counter()`.
    """

    def __init__(self, plan: Plan, started: float) -> None:
        self._plan = plan
        self._base: list[Future[float]] = [Future() for _ in plan]
        for chain, base in zip(plan, self._base, strict=True):
            if not chain.after:
                base.set_result(started)

    def wait(self, number: int) -> float:
        """Sleep until a chain begins; the time at which it should.

        Raises
        ------
        BenchmarkFailed
            If the tokens that it waits for will never come.
        """
        at = self._base[number].result() + self._plan[number].at
        time.sleep(max(0.0, at - time.perf_counter()))
        return at

    def arrived(self, count: int, at: float) -> None:
        """The plan's first request has so many tokens."""
        for chain, base in zip(self._plan, self._base, strict=True):
            if chain.after == count:
                base.set_result(at)

    def release(self) -> None:
        """No more tokens come: nobody may wait for them."""
        for base in self._base:
            if not base.done():
                base.set_exception(BenchmarkFailed("the plan's first request ended too soon"))


class SchedulerSide:
    """Requests to a loaded engine from several users.

    Every plan begins with an empty prefix cache of the engine's usual size: what a plan's own
    prompts share is found there, what earlier rounds left is not.

    Parameters
    ----------
    engine
        Used by nobody else while a plan is served.
    name
        The side's.
    configured
        What the engine is configured with before every plan, such as the scheduler and its width.
    """

    def __init__(self, engine: mk.Engine, name: str, configured: dict[str, Any]) -> None:
        self.name = name
        self._engine = engine
        self._configured = configured

    def serve(self, plan: Plan) -> PlanRun:
        """Answer a plan's requests, in the engine's own generation mode.

        Raises
        ------
        BenchmarkFailed
            If a request ended with an error.
        """
        self._configure()
        prefixes = PrefixCache(int(PREFIX_MB * 1e6))
        with ThreadPoolExecutor(len(plan), thread_name_prefix="user") as users:
            starts = Starts(plan, time.perf_counter() + LEAD_S)
            users_served = users.map(
                lambda number: self._user(number, plan[number], starts, prefixes),
                range(len(plan)),
            )
            return PlanRun(tuple(served for of_user in users_served for served in of_user))

    def _configure(self) -> None:
        self._engine.configure(**self._configured)

    def _user(
        self, number: int, chain: Chain, starts: Starts, prefixes: PrefixCache
    ) -> list[Served]:
        asked = starts.wait(number)
        served: list[Served] = []
        try:
            for ask in chain.asks:
                first = number == 0 and not served
                served.append(self._answer(ask, asked, prefixes, starts if first else None))
                asked = served[-1].arrivals[-1]
        except MTPLXError as error:
            what = f"{self.name} failed on {chain.asks[len(served)].prompt.name}"
            raise BenchmarkFailed(f"{what}: {error}") from error
        finally:
            if number == 0:
                starts.release()
        return served

    def _answer(
        self, ask: Ask, asked: float, prefixes: PrefixCache, starts: Starts | None
    ) -> Served:
        arrivals: list[tuple[float, int]] = []
        opened = Opened()

        def arrived(token_id: int, text: str) -> None:
            arrivals.append((time.perf_counter(), opened[0].window.verify_calls))
            if starts is not None:
                starts.arrived(len(arrivals), arrivals[-1][0])

        params = mk.SamplingParams(
            max_tokens=ask.tokens, temperature=ask.temperature, seed=ask.seed, ignore_eos=True
        )
        hooks = Hooks(on_token=arrived, restore=prefixes, commit=prefixes)
        late = time.perf_counter() - asked
        door = self._engine.intake
        with opened:
            asks = intake.Ask(hooks=hooks)
            generation = door.open(ask.prompt.ids, door.applied(params), asks, opened).result()
        return Served(
            ask=ask,
            asked=asked,
            queue_wait_s=late + (generation.stats.queue_wait_s or 0.0),
            ids=generation.token_ids,
            arrivals=tuple(at for at, _ in arrivals),
            cycles=tuple(cycle for _, cycle in arrivals),
            cached_tokens=generation.stats.cached_tokens or 0,
        )


class ForkSide(SchedulerSide):
    """Mode hyper with the executor that verifies several continuations of its one request."""

    def __init__(self, engine: mk.Engine) -> None:
        super().__init__(engine, "fork", {"scheduler": "hyper"})

    def _configure(self) -> None:
        super()._configure()
        self._engine.gate.install_width_executor(self._engine.fork_executor())
