"""``%mtplx bench``: how the scheduler modes compare, for this model on this machine."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from mtplx_kernel.checks.asking import PATIENCE_S
from mtplx_kernel.checks.bench_report import REFERENCE, BenchReport, BenchRow, best_of
from mtplx_kernel.checks.prompts import first_prompts, whole
from mtplx_kernel.checks.rounds import (
    LEAST_TOKENS,
    MAX_TOKENS,
    busy,
    encoded,
    in_turn,
    scheduler_put_back,
)
from mtplx_kernel.engine.request import FinishReason, Generation, Handle
from mtplx_kernel.engine.slices import SLICE_S
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.models.progress import ProgressBar
from mtplx_kernel.scheduling.options import TAKEN, WIDEST, SchedulerMode, check_mode

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

CLIENTS = 4
ROUNDS = 3
LEAD = 1.02
"""A mode must be this much faster than serial: less may be chance."""
USUAL_WIDTH = 8
EXPERIMENTAL = SchedulerMode.MTP_COHORT_EXPERIMENTAL


@dataclass(frozen=True, slots=True)
class Run:
    """All questions answered once under one mode."""

    generations: tuple[Generation, ...]

    @property
    def tok_s(self) -> float:
        """Tokens of all answers a second, from the first submit to the last end."""
        windows = [g.window for g in self.generations]
        ends = [w.ended for w in windows if w.ended is not None]
        tokens = sum(w.completion_tokens for w in windows)
        return tokens / (max(ends) - min(w.submitted for w in windows))

    @property
    def ids(self) -> list[tuple[int, ...]]:
        """The answers."""
        return [g.token_ids for g in self.generations]


Runs = Mapping[str, Sequence[Run]]
"""The runs of each mode, one a round."""


def bench(
    engine: Engine,
    *,
    clients: int | None = None,
    modes: Sequence[str] | None = None,
    prompts: int | None = None,
    max_tokens: int | None = None,
    experimental: bool = False,
    progress: bool = True,
) -> BenchReport:
    """Answer the built-in prompts under each scheduler mode, in alternating rounds.

    Parameters
    ----------
    engine
        A loaded engine, used by nobody else meanwhile. Its mode is put back at the end, however
        that comes.
    clients
        How many ask at a time, each one prompt after the other; None takes 4.
    modes
        What to compare with serial; None takes all that can be had, the experimental one only
        with `experimental`.
    prompts
        How many of the built-in prompts; None takes all. Each client asks at least two.
    max_tokens
        Tokens an answer; end tokens do not end it.
    experimental
        Opts in to `mtp_cohort_experimental`.
    progress
        Show a progress bar where somebody watches.

    Raises
    ------
    InvalidRequest
        If an option is wrong, a named mode cannot be had, or other requests run.
    RequestFailed, EngineClosed
        If an answer ends with an error.
    """
    at_a_time = whole("clients", clients, 1, WIDEST, default=CLIENTS)
    length = whole("max_tokens", max_tokens, LEAST_TOKENS, None, default=MAX_TOKENS)
    questions = first_prompts(prompts)
    wanted = _wanted(modes, experimental)
    others = busy(engine)
    if others is not None:
        raise InvalidRequest(
            f"the engine is {others}; wait until its requests are done, or cancel them: a "
            "comparison needs it alone"
        )
    ids = encoded(engine, questions, length)
    asked = list(islice(cycle(ids), max(len(ids), 2 * at_a_time)))
    started = time.perf_counter()
    total = len(wanted) * (at_a_time + ROUNDS * len(asked))
    with (
        scheduler_put_back(engine) as before,
        ProgressBar(wanted=progress, total=total, desc="comparing", unit="run") as bar,
    ):
        asking = _Clients(engine, at_a_time, length, experimental, bar.update)
        missing = asking.warm_up(wanted, asked[:at_a_time], named=modes is not None)
        found = asking.rounds([mode for mode in wanted if mode not in missing], asked)
    rows = tuple(_row(mode, found) for mode in found)
    return BenchReport(
        model=engine.name,
        arithmetic=f"{engine.facts.precision}, {engine.status()['blas']['description']}",
        clients=at_a_time,
        rows=rows,
        best=best_of(rows, LEAD),
        missing=tuple(missing.values()),
        in_force=before,
        seconds=time.perf_counter() - started,
    )


class _Clients:
    """Some clients of an engine: each asks again as soon as it has its answer."""

    def __init__(
        self,
        engine: Engine,
        clients: int,
        length: int,
        experimental: bool,
        done: Callable[[], object],
    ) -> None:
        self._engine = engine
        self._clients = clients
        self._length = length
        self._experimental = experimental
        self._done = done

    def warm_up(
        self, modes: Sequence[str], asked: Sequence[Sequence[int]], *, named: bool
    ) -> dict[str, str]:
        """Run each mode once; the modes that cannot be had, with the reason.

        Raises
        ------
        InvalidRequest
            If one cannot be had that was named.
        """
        missing = {}
        for mode in modes:
            try:
                self._take(mode)
            except InvalidRequest as reason:
                if named or mode == REFERENCE:
                    raise
                missing[mode] = str(reason)
            else:
                self._run(asked)
        return missing

    def rounds(self, modes: Sequence[str], asked: Sequence[Sequence[int]]) -> Runs:
        """Run all questions under each mode, in rounds that begin at another one each time."""
        runs: dict[str, list[Run]] = {mode: [] for mode in modes}
        for turn in range(ROUNDS):
            for mode in in_turn(modes, turn):
                self._take(mode)
                runs[mode].append(self._run(asked))
        return runs

    def _take(self, mode: str) -> None:
        taken = TAKEN[SchedulerMode(mode)]
        settings: dict[str, Any] = {}
        if "width" in taken:
            settings["width"] = max(USUAL_WIDTH, self._clients)
        if self._experimental and "experimental" in taken:
            settings["experimental"] = True
        self._engine.configure(scheduler=mode, **settings)

    def _run(self, asked: Sequence[Sequence[int]]) -> Run:
        """Have all questions answered; an exception in this thread ends them."""
        ended: queue.SimpleQueue[Handle] = queue.SimpleQueue()
        handles: list[Handle] = []
        answered = 0
        try:
            while answered < len(asked):
                while len(handles) < len(asked) and len(handles) - answered < self._clients:
                    handles.append(self._submit(asked[len(handles)]))
                    handles[-1].when_done(ended.put)
                answered += self._one_ended(ended)
            return Run(tuple(handle.result() for handle in handles))
        except BaseException:
            for handle in handles:
                handle.cancel(FinishReason.INTERRUPTED)
            end = time.monotonic() + PATIENCE_S
            for handle in handles:
                handle.wait(max(0.0, end - time.monotonic()))
            raise

    # A method of its own: in Python 3.11 an interrupt at a `continue` to the head of a loop that
    # begins a try block is not caught there.
    def _one_ended(self, ended: queue.SimpleQueue[Handle]) -> bool:
        try:
            ended.get(timeout=SLICE_S)
        except queue.Empty:
            return False
        self._done()
        return True

    def _submit(self, ids: Sequence[int]) -> Handle:
        # No mode may find in the prefix cache what another has put there.
        return self._engine.submit(
            list(ids), max_tokens=self._length, ignore_eos=True, prefix_cache=False
        )


def _wanted(modes: Sequence[str] | None, experimental: bool) -> list[str]:
    """The modes to run, serial first and each once."""
    named = SchedulerMode if modes is None else [check_mode(mode) for mode in modes]
    return list(
        dict.fromkeys(
            str(mode)
            for mode in (SchedulerMode.SERIAL, *named)
            if modes is not None or mode is not EXPERIMENTAL or experimental
        )
    )


def _row(mode: str, runs: Runs) -> BenchRow:
    own, serial = runs[mode], runs[REFERENCE]
    stats = [g.stats for run in own for g in run.generations]
    pairs = [
        (ids, reference)
        for run, other in zip(own, serial, strict=True)
        for ids, reference in zip(run.ids, other.ids, strict=True)
    ]
    return BenchRow(
        mode=mode,
        tok_s=median(run.tok_s for run in own),
        ratio=median(r.tok_s / other.tok_s for r, other in zip(own, serial, strict=True)),
        # Answers have a fixed length that no first cycle reaches, so all of these are known.
        stream_tok_s=median(s.decode_tok_s for s in stats if s.decode_tok_s is not None),
        ttft_s=median(s.ttft_s for s in stats if s.ttft_s is not None),
        tokens_per_cycle=fmean(s.tokens_per_cycle for s in stats if s.tokens_per_cycle is not None),
        answers=len(pairs),
        equal=sum(ids == reference for ids, reference in pairs),
    )
