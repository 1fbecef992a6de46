"""Many users at once: every scheduler mode of the engine against mlx-lm's BatchGenerator.

`python -m benchmarks.concurrency [--model NAME] [--head auto|none|PATH] [--clients 1,2,4,8,16]
[--modes NAMES] [--loads NAMES] [--parts table,headline,solo,gap] [--max-tokens N] [--requests N]
[--repeats N] [--width N] [--itl-ms MS] [--quick] [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import concurrency_page
from benchmarks.concurrency_bench import PARTS, Bench, Scale
from benchmarks.loads import LOADS
from benchmarks.measure import BenchmarkFailed
from benchmarks.options import names, whole, wholes
from mtplx_kernel.errors import MTPLXError
from mtplx_kernel.scheduling.options import SchedulerMode, SchedulerOptions

QUICK = {"clients": (1, 2), "max_tokens": 32, "requests": 1, "repeats": 1, "long_prompt": 100}
"""What `--quick` makes of the other defaults: to see that everything runs, not to quote."""


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line; wrong ones end the process with one line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.concurrency",
        description="Compares the engine's scheduler modes with mlx-lm's BatchGenerator.",
    )
    modes = tuple(map(str, SchedulerMode))
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id")
    parser.add_argument("--head", default="auto", help="auto, none, or the path of a head")
    parser.add_argument("--clients", type=wholes(1, 64), default=(1, 2, 4, 8, 16))
    parser.add_argument("--modes", type=names(modes), default=modes, help="scheduler modes")
    parser.add_argument("--loads", type=names(LOADS), default=("chat",), help="of the table")
    parser.add_argument("--parts", type=names(PARTS), default=PARTS, help="what to measure")
    parser.add_argument("--max-tokens", type=whole(4), default=48, help="of a short answer")
    parser.add_argument("--requests", type=whole(1), default=2, help="of each client")
    parser.add_argument("--repeats", type=whole(1), default=5, help="rounds after the warm-up")
    parser.add_argument("--width", type=whole(1), help="most rows; usually the most clients")
    parser.add_argument(
        "--itl-ms",
        type=whole(1),
        default=round(SchedulerOptions().itl_ms),
        help="cooperative's target for the gap between tokens",
    )
    parser.add_argument("--long-prompt", type=whole(16), default=2000, help="tokens, for the gap")
    parser.add_argument("--quick", action="store_true", help="see that it runs; quote nothing")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(given)
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args(given)
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if it could not be run."""
    options = arguments(given)
    scale = Scale(
        clients=options.clients,
        max_tokens=options.max_tokens,
        requests=options.requests,
        rounds=options.repeats,
        itl_ms=options.itl_ms,
        long_prompt=options.long_prompt,
        width=options.width,
    )
    try:
        with Bench(options.model, options.head, options.modes, scale) as bench:
            report = bench.measure(options.parts, [LOADS[name] for name in options.loads])
    except (BenchmarkFailed, MTPLXError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(concurrency_page.text(report))
    if options.json:
        print(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
