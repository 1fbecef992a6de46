"""What watching costs: tokens a second with all views open against none, in one kernel.

`python -m benchmarks.widgets [--model NAME] [--head auto|none|PATH] [--mode NAME] [--clients N]
[--max-tokens N] [--requests N] [--repeats N] [--quick] [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.concurrency_page import table
from benchmarks.measure import BenchmarkFailed, in_turn
from benchmarks.options import whole
from benchmarks.page import ENOUGH_ROUNDS, machine_rows
from benchmarks.widget_kernel import ViewsKernel, ViewsRun
from mtplx_kernel.models.progress import ProgressBar
from mtplx_kernel.scheduling.options import SchedulerMode

QUICK = {"clients": 2, "max_tokens": 8, "requests": 1, "repeats": 1}
"""What `--quick` makes of the other defaults: to see that everything runs, not to quote."""
SIDES: dict[str, tuple[str, ...]] = {
    "none": (),
    "all_open": ("timeline", "acceptance", "request", "controls"),
}
"""The views that are open on each side."""


@dataclass(frozen=True, slots=True)
class WidgetsReport:
    """What the benchmark found; the JSON object has the same fields.

    Attributes
    ----------
    ratios
        `all_open_vs_none`: tokens a second with all views open over none, the median of the rounds.
    ids_equal
        Whether every run gave the same ids.
    most_messages_a_second
        Of one view, in any round.
    table
        One row for each side.
    """

    benchmark: str
    model: str
    machine: dict[str, Any]
    ratios: dict[str, float]
    ids_equal: bool
    most_messages_a_second: int
    table: list[dict[str, Any]]


def measure(kernel: ViewsKernel, model: str, mode: str, rounds: int) -> WidgetsReport:
    """Answer the same plan on both sides in turn, round after round."""
    described = kernel.machine() | {"scheduler": mode}
    found: dict[str, list[ViewsRun]] = {side: [] for side in SIDES}
    total = len(SIDES) * (1 + rounds)
    with ProgressBar(total=total, desc="widgets", unit="run") as bar:
        for views in SIDES.values():
            kernel.serve(views)
            bar.update()
        for turn in range(rounds):
            for side in in_turn(tuple(SIDES), turn):
                found[side].append(kernel.serve(SIDES[side]))
                bar.update()
    pairs = zip(found["all_open"], found["none"], strict=True)
    return WidgetsReport(
        benchmark="widgets",
        model=model,
        machine=described,
        ratios={"all_open_vs_none": median(a.tok_s / b.tok_s for a, b in pairs)},
        ids_equal=len({run.ids for runs in found.values() for run in runs}) == 1,
        most_messages_a_second=max(run.busiest for run in found["all_open"]),
        table=[_row(side, runs) for side, runs in found.items()],
    )


def _row(side: str, runs: Sequence[ViewsRun]) -> dict[str, Any]:
    rates = sorted(run.tok_s for run in runs)
    return {
        "side": side,
        "rounds": len(runs),
        "tokens": runs[0].tokens,
        "seconds": median(run.seconds for run in runs),
        "tok_s": median(rates),
        "tok_s_low": rates[0],
        "tok_s_high": rates[-1],
        "messages_a_second": median(run.messages / run.seconds for run in runs),
    }


def text(report: WidgetsReport) -> str:
    """The report for people."""
    rounds = report.table[0]["rounds"]
    few = "" if rounds >= ENOUGH_ROUNDS else f" Too few rounds to quote: repeat {ENOUGH_ROUNDS}."
    about = [*machine_rows(report.machine), ("Scheduler", report.machine["scheduler"])]
    columns = (
        ("views", lambda r: str(r["side"])),
        ("tokens", lambda r: str(r["tokens"])),
        ("tok/s", lambda r: f"{r['tok_s']:.1f}"),
        ("from", lambda r: f"{r['tok_s_low']:.1f}"),
        ("to", lambda r: f"{r['tok_s_high']:.1f}"),
        ("messages/s", lambda r: f"{r['messages_a_second']:.1f}"),
    )
    ratios = [f"| {name} | {value:.3f} |" for name, value in report.ratios.items()]
    return "\n\n".join(
        [
            f"# {report.benchmark}: {report.model}",
            "\n".join(f"- {label}: {value}" for label, value in about),
            f"Medians of {rounds} {'round' if rounds == 1 else 'rounds'}.{few}",
            table(columns, report.table),
            "\n".join(["| tokens a second | value |", "|---|---|", *ratios]),
            f"No view sent more than {report.most_messages_a_second} messages in a second.",
            "Every run gave the same ids."
            if report.ids_equal
            else "The ids of the runs differ: who shared a forward did, and so did its rounding.",
        ]
    )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line; wrong ones end the process with one line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.widgets",
        description="Compares decoding with all views open and with none, in one kernel.",
    )
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id")
    parser.add_argument("--head", default="auto", help="auto, none, or the path of a head")
    modes = tuple(map(str, SchedulerMode))
    parser.add_argument("--mode", choices=modes, default="mtp_batch", help="the scheduler mode")
    parser.add_argument("--clients", type=whole(1, 64), default=8, help="how many ask at a time")
    parser.add_argument("--max-tokens", type=whole(4), default=96, help="of an answer")
    parser.add_argument("--requests", type=whole(1), default=3, help="of each client")
    parser.add_argument("--repeats", type=whole(1), default=7, help="rounds after the warm-up")
    parser.add_argument("--quick", action="store_true", help="see that it runs; quote nothing")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(given)
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args(given)
    return options


def cells(options: argparse.Namespace) -> list[str]:
    """What makes the kernel ready."""
    asked = f"{options.mode!r}, {options.clients}, {options.requests}, {options.max_tokens}"
    return [
        "%load_ext mtplx_kernel",
        f"%mtplx load '{options.model}' --head '{options.head}' --prefix-cache-mb 0",
        f"from benchmarks.widget_rounds import Rounds\nrounds = Rounds({asked})",
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if it could not be run."""
    options = arguments(given)
    try:
        with ViewsKernel(cells(options)) as kernel:
            report = measure(kernel, options.model, options.mode, options.repeats)
    except BenchmarkFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text(report))
    if options.json:
        print(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
