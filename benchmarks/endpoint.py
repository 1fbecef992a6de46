"""What HTTP costs: tokens a second of the endpoint against the engine that it serves.

`python -m benchmarks.endpoint [--model NAME] [--head auto|none|PATH] [--mode NAME] [--clients 1,8]
[--max-tokens N] [--requests N] [--repeats N] [--quick] [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import mtplx_kernel as mk
from benchmarks import machine
from benchmarks.arrivals import Plan, closed, shortened
from benchmarks.cells import WARM_UP_TOKENS
from benchmarks.concurrency_page import table
from benchmarks.endpoint_sides import EndpointUsers, EngineUsers, UsersRun, UsersSide
from benchmarks.loads import LOADS
from benchmarks.measure import BenchmarkFailed, in_turn
from benchmarks.options import whole, wholes
from benchmarks.page import ENOUGH_ROUNDS, machine_rows
from benchmarks.scheduler_side import settings
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.errors import MTPLXError
from mtplx_kernel.models.progress import ProgressBar
from mtplx_kernel.scheduling.options import SchedulerMode, SchedulerOptions

QUICK = {"clients": (1, 2), "max_tokens": 8, "requests": 1, "repeats": 1}
"""What `--quick` makes of the other defaults: to see that everything runs, not to quote."""
SEED = 5


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """What the benchmark found; the JSON object has the same fields.

    Attributes
    ----------
    ratios
        `tok_s_at_N`: the endpoint's tokens a second over the engine's, with N clients, the median
        of the rounds; `first_text_at_N`: the same of the time to the first token.
    texts_equal
        Whether both sides gave the same text of the same number of tokens to every request, in
        every round.
    table
        One row for each number of clients and side.
    """

    benchmark: str
    model: str
    machine: dict[str, Any]
    ratios: dict[str, float]
    texts_equal: bool
    table: list[dict[str, Any]]


class Bench:
    """An engine and its endpoint; use it as a context.

    Parameters
    ----------
    model, head
        As `mtplx_kernel.load` takes them.
    mode
        The scheduler mode.
    clients
        How many there are in turn.

    Attributes
    ----------
    sides
        A test may put another in the place of one.
    """

    def __init__(self, model: str, head: str, mode: str, clients: Sequence[int]) -> None:
        self._clients, self._mode = clients, mode
        with ExitStack() as stack:
            # Prompts of earlier rounds must cost what those of the first one do.
            loaded = mk.load(model, head=head, prefix_cache_mb=0)
            self.engine = stack.enter_context(loaded)
            self.engine.configure(**settings(mode, max(clients), SchedulerOptions().itl_ms))
            endpoint = stack.enter_context(self.engine.serve())
            users = stack.enter_context(EndpointUsers(endpoint, self.engine.name))
            self.sides: list[UsersSide] = [EngineUsers(self.engine), users]
            self._stack = stack.pop_all()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def measure(self, max_tokens: int, requests: int, rounds: int) -> EndpointReport:
        """Serve the same plans with both sides in turn, round after round."""
        running = self.engine.status()["blas"]
        described = machine.describe(
            self.engine.facts.precision, running["description"], running["threads"]
        )
        encoder = PromptEncoder(self.engine.tokenizer, self.engine.facts)
        ratios: dict[str, float] = {}
        rows: list[dict[str, Any]] = []
        equal = True
        total = len(self._clients) * len(self.sides) * (1 + rounds)
        with ProgressBar(total=total, desc="endpoint", unit="run") as bar:
            for clients in self._clients:
                asks = LOADS["chat"].asks(encoder.encode, clients * requests, max_tokens, SEED)
                runs = self._runs(closed(asks, clients), rounds, bar)
                ours, theirs = runs[EndpointUsers.name], runs[EngineUsers.name]
                ratios[f"tok_s_at_{clients}"] = median(
                    a.tok_s / b.tok_s for a, b in zip(ours, theirs, strict=True)
                )
                ratios[f"first_text_at_{clients}"] = median(
                    a.first_text_s / b.first_text_s for a, b in zip(ours, theirs, strict=True)
                )
                told = {tuple((a.text, a.tokens) for a in r.answers) for r in (*ours, *theirs)}
                equal = equal and len(told) == 1
                rows += [_row(clients, requests, name, found) for name, found in runs.items()]
        return EndpointReport(
            benchmark="endpoint",
            model=self.engine.name,
            machine=described | {"scheduler": self._mode},
            ratios=ratios,
            texts_equal=equal,
            table=rows,
        )

    def _runs(self, plan: Plan, rounds: int, bar: Any) -> dict[str, list[UsersRun]]:
        found: dict[str, list[UsersRun]] = {side.name: [] for side in self.sides}
        for side in self.sides:
            side.serve(shortened(plan, WARM_UP_TOKENS))
            bar.update()
        for turn in range(rounds):
            for side in in_turn(self.sides, turn):
                found[side.name].append(side.serve(plan))
                bar.update()
        return found


def _row(clients: int, requests: int, side: str, runs: Sequence[UsersRun]) -> dict[str, Any]:
    return {
        "clients": clients,
        "side": side,
        "rounds": len(runs),
        "requests": clients * requests,
        "tokens": sum(answer.tokens for answer in runs[0].answers),
        "tok_s": median(run.tok_s for run in runs),
        "first_byte_s": median(run.first_byte_s for run in runs),
        "first_text_s": median(run.first_text_s for run in runs),
    }


def text(report: EndpointReport) -> str:
    """The report for people."""
    rounds = report.table[0]["rounds"]
    few = "" if rounds >= ENOUGH_ROUNDS else f" Too few rounds to quote: repeat {ENOUGH_ROUNDS}."
    about = [*machine_rows(report.machine), ("Scheduler", report.machine["scheduler"])]
    columns = (
        ("clients", lambda r: str(r["clients"])),
        ("side", lambda r: str(r["side"])),
        ("requests", lambda r: str(r["requests"])),
        ("tokens", lambda r: str(r["tokens"])),
        ("tok/s", lambda r: f"{r['tok_s']:.1f}"),
        ("first byte ms", lambda r: f"{1000 * r['first_byte_s']:.1f}"),
        ("first token ms", lambda r: f"{1000 * r['first_text_s']:.1f}"),
    )
    ratios = [f"| {name} | {value:.3f} |" for name, value in report.ratios.items()]
    return "\n\n".join(
        [
            f"# {report.benchmark}: {report.model}",
            "\n".join(f"- {label}: {value}" for label, value in about),
            f"Medians of {rounds} {'round' if rounds == 1 else 'rounds'}.{few}",
            table(columns, report.table),
            "\n".join(["| endpoint over engine | value |", "|---|---|", *ratios]),
            "Both sides gave the same texts, of the same numbers of tokens."
            if report.texts_equal
            else "The texts of the two sides differ.",
        ]
    )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line; wrong ones end the process with one line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endpoint",
        description="Compares the endpoint with the engine that it serves, in one run.",
    )
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id")
    parser.add_argument("--head", default="auto", help="auto, none, or the path of a head")
    modes = tuple(map(str, SchedulerMode))
    parser.add_argument("--mode", choices=modes, default="mtp_batch", help="the scheduler mode")
    parser.add_argument("--clients", type=wholes(1, 64), default=(1, 8))
    parser.add_argument("--max-tokens", type=whole(4), default=64, help="of an answer")
    parser.add_argument("--requests", type=whole(1), default=3, help="of each client")
    parser.add_argument("--repeats", type=whole(1), default=7, help="rounds after the warm-up")
    parser.add_argument("--quick", action="store_true", help="see that it runs; quote nothing")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(given)
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args(given)
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if it could not be run, or if the sides' texts differ."""
    options = arguments(given)
    try:
        with Bench(options.model, options.head, options.mode, options.clients) as bench:
            report = bench.measure(options.max_tokens, options.requests, options.repeats)
    except (BenchmarkFailed, MTPLXError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text(report))
    if options.json:
        print(json.dumps(asdict(report)))
    return 0 if report.texts_equal else 1


if __name__ == "__main__":
    sys.exit(main())
