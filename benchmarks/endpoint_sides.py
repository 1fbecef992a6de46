"""The two sides of the endpoint benchmark: users inside the engine's process, and over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any, Protocol, Self

import mtplx_kernel as mk
from benchmarks.arrivals import Ask, Plan
from benchmarks.measure import BenchmarkFailed
from benchmarks.peers import ROOT
from mtplx_kernel.server.thread import Endpoint


@dataclass(frozen=True, slots=True)
class Answered:
    """One answered request.

    Attributes
    ----------
    first_byte_s
        From asking to the first byte of the response; inside the process to the first token.
    first_text_s
        From asking to the first token, or to the event that has it.
    """

    text: str
    tokens: int
    first_byte_s: float
    first_text_s: float


@dataclass(frozen=True, slots=True)
class UsersRun:
    """A plan served once; the answers are in the plan's order, chain by chain."""

    seconds: float
    answers: tuple[Answered, ...]

    @property
    def tok_s(self) -> float:
        """Tokens a second of all answers together, from the first request to the last end."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    @property
    def first_byte_s(self) -> float:
        """The median."""
        return median(answer.first_byte_s for answer in self.answers)

    @property
    def first_text_s(self) -> float:
        """The median."""
        return median(answer.first_text_s for answer in self.answers)


class UsersSide(Protocol):
    """One of the things that are compared."""

    name: str

    def serve(self, plan: Plan) -> UsersRun:
        """Answer a plan's requests greedily, past any end token."""
        ...


class EngineUsers:
    """Users on threads of the engine's process, each told of every token."""

    name = "engine"

    def __init__(self, engine: mk.Engine) -> None:
        self._engine = engine

    def serve(self, plan: Plan) -> UsersRun:
        """See `UsersSide`."""
        begin = threading.Barrier(len(plan) + 1)

        def user(asks: Sequence[Ask]) -> list[Answered]:
            begin.wait()
            return [self._answer(ask) for ask in asks]

        with ThreadPoolExecutor(len(plan), thread_name_prefix="user") as users:
            working = [users.submit(user, chain.asks) for chain in plan]
            begin.wait()
            started = time.perf_counter()
            answers = [answer for each in working for answer in each.result()]
            return UsersRun(time.perf_counter() - started, tuple(answers))

    def _answer(self, ask: Ask) -> Answered:
        arrivals: list[float] = []
        asked = time.perf_counter()
        generation = self._engine.submit(
            list(ask.prompt.ids),
            max_tokens=ask.tokens,
            temperature=ask.temperature,
            ignore_eos=True,
            on_token=lambda token_id, text: arrivals.append(time.perf_counter()),
        ).result()
        first_s = arrivals[0] - asked
        return Answered(generation.text, len(generation.token_ids), first_s, first_s)


class EndpointUsers:
    """Users of an endpoint, in another process; see `benchmarks.http_users`."""

    name = "endpoint"

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._model = model
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.http_users"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._tell({"url": endpoint.url, "token": endpoint.token})

    def serve(self, plan: Plan) -> UsersRun:
        """See `UsersSide`; the times are the other process's own.

        Raises
        ------
        BenchmarkFailed
            If that process has died.
        """
        assert self._process.stdout is not None
        self._tell([[self._wish(ask) for ask in chain.asks] for chain in plan])
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        found = json.loads(line)
        answers = tuple(Answered(**answer) for user in found["answers"] for answer in user)
        return UsersRun(found["seconds"], answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()

    def _wish(self, ask: Ask) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": list(ask.prompt.ids),
            "max_tokens": ask.tokens,
            "temperature": ask.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        try:
            print(json.dumps(what), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._died() from None

    def _died(self) -> BenchmarkFailed:
        code = self._process.wait()
        return BenchmarkFailed(
            f"the process of the endpoint's users ended with code {code}; its message is above"
        )
