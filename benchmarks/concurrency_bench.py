"""The parts of the concurrency benchmark: the table, the headline, one request alone, the gap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mtplx_kernel as mk
from benchmarks import gaps, loads, machine, streams
from benchmarks.arrivals import Ask, closed
from benchmarks.batchgen_side import BatchGeneratorSide
from benchmarks.cells import Cell, CellRuns, run_cell
from benchmarks.concurrency_page import ConcurrencyReport
from benchmarks.equality import SerialAnswers
from benchmarks.loads import Load
from benchmarks.measure import BenchmarkFailed
from benchmarks.scheduler_side import ForkSide, SchedulerSide, settings
from benchmarks.served import PlanRun, PlanSide
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.models.progress import ProgressBar

PARTS = ("table", "headline", "solo", "gap")
SOLO_PROMPTS = 4
HEADLINE_CLIENTS = 8
"""As many, or the most of `--clients` where that is less."""
COHORT_MODES = ("mtp_batch", "mtp_cohort_experimental")
SOLO_SIDES = ("serial", "hyper", "fork")
STREAM_LENGTH = 4
"""Tokens of the stream that a long prompt comes beside, in short answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured.

    Attributes
    ----------
    max_tokens
        Of the longest short answer.
    requests
        Of each client in a plan.
    rounds
        After the warm-up.
    width
        Most rows of the modes that batch; None takes the most clients.
    itl_ms
        The target of cooperative for the gap between tokens.
    long_prompt
        Tokens of the prompt that comes beside a running stream.
    """

    clients: tuple[int, ...]
    max_tokens: int
    requests: int
    rounds: int
    itl_ms: int
    long_prompt: int
    width: int | None = None

    @property
    def rows(self) -> int:
        """The width in force."""
        return self.width or max(self.clients)

    @property
    def cohort(self) -> int:
        """How many clients the headline has."""
        return min(HEADLINE_CLIENTS, max(self.clients))


@dataclass(slots=True)
class Found:
    """What the parts have come to so far; see `ConcurrencyReport`."""

    ratios: dict[str, float] = field(default_factory=dict)
    table: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)


class Bench:
    """The loaded sides of the benchmark; use it as a context.

    Parameters
    ----------
    model
        A catalog name, a local mlx-lm folder or a hub id.
    head
        Which MTP head drafts, as `mtplx_kernel.load` takes it.
    modes
        The scheduler modes to measure.

    Attributes
    ----------
    sides
        By name; a test may put another in the place of one.
    """

    def __init__(self, model: str, head: str, modes: Sequence[str], scale: Scale) -> None:
        self._scale = scale
        with ExitStack() as stack:
            loaded = mk.load(model, head=head)
            self.engine = stack.enter_context(loaded)
            folder = Path(self.engine.facts.path).resolve()
            self.peer: PlanSide = stack.enter_context(BatchGeneratorSide(folder))
            self.sides: dict[str, PlanSide] = {
                mode: SchedulerSide(self.engine, mode, settings(mode, scale.rows, scale.itl_ms))
                for mode in modes
            }
            if "hyper" in modes:
                self.sides["fork"] = ForkSide(self.engine)
            self._stack = stack.pop_all()
        self._modes = tuple(modes)
        self._encoder = PromptEncoder(self.engine.tokenizer, self.engine.facts)
        self._serial = SerialAnswers(self.engine)
        self._found = Found()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def measure(self, parts: Sequence[str], of_table: Sequence[Load]) -> ConcurrencyReport:
        """Measure some of `PARTS`; the table for some loads."""
        self._found = found = Found()
        status = self.engine.status()
        blas = status["blas"]
        described = machine.describe(
            self.engine.facts.precision, blas["description"], blas["threads"]
        )
        if "table" in parts:
            for load in of_table:
                for clients in self._scale.clients:
                    self._load(load, clients)
        if "headline" in parts:
            self._headline()
        if "solo" in parts:
            self._solo()
        if "gap" in parts:
            self._gap()
        return ConcurrencyReport(
            benchmark="concurrency",
            model=self.engine.name,
            machine=described
            | {
                "blas_threads_at_the_end": self.engine.status()["blas"]["threads"],
                "drafters": status["drafters"],
                "head": status["head"].get("source"),
                "mtp_reason": self.engine.mode_reason,
                "width": self._scale.rows,
                "long_prompt_tokens": self._scale.long_prompt,
                "tolerance": self._serial.tolerance,
            },
            ratios=found.ratios,
            ids_equal=all(d["side"] == self.peer.name for d in found.differences),
            table=found.table,
            gaps=found.gaps,
            differences=found.differences,
        )

    def _load(self, load: Load, clients: int) -> None:
        """One load for so many clients: every mode and mlx-lm."""
        scale = self._scale
        asks = self._fitted(
            load.asks(self._encode, clients * scale.requests, scale.max_tokens, seed=clients)
        )
        rate = loads.UTILISATION * self._capacity(asks, clients) if load.open else 0.0
        cell = Cell(
            load.name, clients, (load.plan(asks, clients, rate, seed=clients),), scale.rounds
        )
        runs = self._run(cell, [self.peer, *(self.sides[mode] for mode in self._modes)])
        # Requests that come by themselves fix the total: there a user's own rate is compared.
        rates = _rates(runs, streams.stream_rate if load.open else _total)
        pairs = [(mode, self.peer.name) for mode in self._modes]
        where = f"{clients}" if load.name == "chat" else f"{clients}-{load.name}"
        self._found.ratios |= streams.ratios(rates, [*pairs, ("mtp_batch", "ar_batch")], where)

    def _headline(self) -> None:
        """Many samples of one prompt, and many questions about one text: what cohorts are for."""
        sides = [self.sides[mode] for mode in COHORT_MODES if mode in self._modes]
        if len(sides) < len(COHORT_MODES):
            return
        count, tokens = self._scale.cohort, self._scale.max_tokens
        works = {
            "samples": loads.many_samples(self._encode, count, tokens),
            "document": loads.many_questions(self._encode, count, tokens),
        }
        by_work = []
        for name, asks in works.items():
            cell = Cell(name, count, (closed(self._fitted(asks), count),), self._scale.rounds)
            by_work.append(self._run(cell, sides))
            self._found.ratios |= _cohort_ratio(_rates(by_work[-1], _total), name)
        both = {
            side: [
                streams.joint_rate(pair) for pair in zip(*(r[side] for r in by_work), strict=True)
            ]
            for side in COHORT_MODES
        }
        self._found.ratios |= _cohort_ratio(both, "headline")

    def _solo(self) -> None:
        """One request at a time, side against side on each prompt."""
        sides = [self.sides[name] for name in SOLO_SIDES if name in self.sides]
        if len(sides) < len(SOLO_SIDES):
            return
        asks = LOAD_ALONE.asks(self._encode, SOLO_PROMPTS, self._scale.max_tokens, seed=0)
        plans = tuple(closed([ask], 1) for ask in self._fitted(asks))
        cell = Cell("solo", 1, plans, self._scale.rounds * len(plans))
        rates = _rates(self._run(cell, sides), _total)
        pairs = [("hyper", "serial"), ("fork", "serial")]
        self._found.ratios |= streams.ratios(rates, pairs, "")

    def _gap(self) -> None:
        """A long prompt beside a running stream."""
        scale = self._scale
        sides = [self.peer, *(self.sides[mode] for mode in self._modes)]
        (stream,) = LOAD_ALONE.asks(self._encode, 1, 1, seed=0)
        stream = Ask(stream.prompt, STREAM_LENGTH * scale.max_tokens)
        newcomers = loads.long_prompts(self._encode, scale.long_prompt, scale.rounds + 1)
        self._check_room([stream, Ask(newcomers[0], gaps.NEWCOMER_TOKENS)])
        meeting = gaps.Meeting(stream, tuple(newcomers))
        with _bar("gap", len(sides) * (1 + scale.rounds)) as bar:
            found = gaps.measure(sides, meeting, bar.update)
        self._found.ratios |= gaps.ratios(found, "cooperative", scale.itl_ms)
        self._found.gaps += gaps.rows(found, scale.itl_ms)

    def _run(self, cell: Cell, sides: Sequence[PlanSide]) -> CellRuns:
        """Run a cell, compare its answers with the serial ones, and note its rows."""
        with _bar(f"{cell.load}@{cell.clients}", cell.runs_of(len(sides))) as bar:
            runs = run_cell(cell, sides, bar.update)
        for side, of_side in runs.items():
            where = {"load": cell.load, "clients": cell.clients, "side": side}
            differing = self._serial.differences(of_side)
            self._found.differences += [
                {**where, **asdict(d), "beyond_rounding": d.margin > self._serial.tolerance}
                for d in differing
            ]
            self._found.table.append(
                {
                    **where,
                    **streams.figures(of_side),
                    "differing": sum(d.times for d in differing),
                    "worst_margin": max((d.margin for d in differing), default=None),
                }
            )
        return runs

    def _fitted(self, asks: Sequence[Ask]) -> list[Ask]:
        """The requests, if the context has room for them, with their natural lengths."""
        self._check_room(asks)
        return self._serial.fitted(asks)

    def _capacity(self, asks: Sequence[Ask], clients: int) -> float:
        """Requests a second that mlx-lm serves where so many clients keep asking."""
        run = self.peer.serve(closed(asks, clients))
        return len(run.served) / run.seconds

    def _encode(self, text: str) -> tuple[int, ...]:
        return self._encoder.encode(text)

    def _check_room(self, asks: Sequence[Ask]) -> None:
        longest = max(asks, key=lambda ask: len(ask.prompt.ids) + ask.tokens)
        room = self.engine.facts.context_length - len(longest.prompt.ids)
        if longest.tokens > room:
            raise BenchmarkFailed(
                f"{self.engine.name} has room for {room} tokens after prompt "
                f"{longest.prompt.name}, not {longest.tokens}: give a smaller --max-tokens or "
                "another --model"
            )


LOAD_ALONE = loads.LOADS["chat"]


def _total(run: PlanRun) -> float:
    return run.tok_s


def _rates(runs: CellRuns, rate: Callable[[PlanRun], float]) -> dict[str, list[float]]:
    return {side: [rate(run) for run in of_side] for side, of_side in runs.items()}


def _cohort_ratio(rates: Mapping[str, Sequence[float]], where: str) -> dict[str, float]:
    batch, cohort = COHORT_MODES
    return streams.ratios(
        {batch: rates[batch], "cohort": rates[cohort]}, [("cohort", batch)], where
    )


def _bar(name: str, total: int) -> ProgressBar:
    return ProgressBar(total=total, desc=name, unit="run")
