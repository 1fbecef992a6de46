"""Decoding side by side: mlx-lm, mlx-lm as pip installs it, and the engine in both modes.

`python -m benchmarks.decode [--model NAME] [--head auto|none|PATH] [--prompts N] [--max-tokens N]
[--repeats N] [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import mtplx_kernel as mk
from benchmarks import machine, page, summary
from benchmarks.engine_side import EngineSide
from benchmarks.measure import BenchmarkFailed, EncodedPrompt, Side, gathered, run_round
from benchmarks.options import whole
from benchmarks.peers import ProcessPeer, ThreadPeer
from benchmarks.prompts import PROMPTS, BenchmarkPrompt
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.errors import MTPLXError
from mtplx_kernel.models.progress import ProgressBar

FEWEST_TOKENS = MAX_DEPTH + 2
"""A first block may hold a token more than the deepest draft: one must come after it."""


class Bench:
    """The loaded sides of the decode benchmark; use it as a context.

    Parameters
    ----------
    model
        A catalog name, a local mlx-lm folder or a hub id.
    head
        Which MTP head drafts, as `mtplx_kernel.load` takes it.
    stock
        Whether mlx-lm with the BLAS that MLX was installed with is a side, where there is another.

    Attributes
    ----------
    sides
        In the order of the report; a test may put another in the place of one.
    """

    def __init__(self, model: str, head: str = "auto", *, stock: bool = True) -> None:
        with ExitStack() as stack:
            loaded = mk.load(model, head=head)
            self.engine = stack.enter_context(loaded)
            folder = Path(self.engine.facts.path).resolve()
            self.peer = stack.enter_context(ThreadPeer(folder))
            # A GPU multiplies with its own kernels: there is no other BLAS to compare.
            stock = stock and self.engine.facts.device == "cpu"
            peers = [stack.enter_context(ProcessPeer(folder))] if stock else []
            self.stock_blas = peers[0].blas if peers else None
            modes = ["ar"] if self.engine.mode_reason else ["ar", "mtp"]
            own = [EngineSide(self.engine, mode) for mode in modes]
            self.sides: list[Side] = [self.peer, *peers, *own]
            self._stack = stack.pop_all()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def encode(
        self, prompts: Sequence[BenchmarkPrompt], max_tokens: int
    ) -> tuple[EncodedPrompt, ...]:
        """The prompts' ids, the same for all sides.

        Raises
        ------
        BenchmarkFailed
            If the model's context cannot hold a prompt and its answer.
        """
        encoder = PromptEncoder(self.engine.tokenizer, self.engine.facts)
        encoded = tuple(EncodedPrompt(p.name, p.domain, encoder.encode(p.text)) for p in prompts)
        longest = max(encoded, key=lambda prompt: len(prompt.ids))
        room = self.engine.facts.context_length - len(longest.ids)
        if max_tokens > room:
            raise BenchmarkFailed(
                f"{self.engine.name} has room for {room} tokens after prompt {longest.name}, not "
                f"{max_tokens}: give a smaller --max-tokens or another --model"
            )
        return encoded

    def measure(
        self, prompts: Sequence[EncodedPrompt], max_tokens: int, repeats: int
    ) -> page.Report:
        """Warm up, run `repeats` rounds in turn, and compare."""
        running = self.engine.status()["blas"]
        described = machine.describe(
            self.engine.facts.precision, running["description"], running["threads"]
        )
        reader = machine.MemoryReader(described["blas_threads"] or 1)
        rounds, bandwidths = [], []
        total = len(self.sides) * (1 + repeats * len(prompts))
        with ProgressBar(total=total, desc="decode", unit="run") as bar:
            run_round(self.sides, prompts[:1], max_tokens, turn=0, done=bar.update)
            for turn in range(repeats):
                bandwidths.append(reader.bytes_per_second())
                rounds.append(run_round(self.sides, prompts, max_tokens, turn, done=bar.update))
        runs = gathered(rounds)
        differing = summary.divergences(runs, prompts, self.peer.name, self.peer.margin)
        names = [side.name for side in self.sides]
        described |= {
            "blas_stock": self.stock_blas,
            "blas_threads_at_the_end": self.engine.status()["blas"]["threads"],
            "bandwidth_bytes_s": round(median(bandwidths)),
            "weight_bytes": self.peer.weight_bytes,
            "mtp_reason": self.engine.mode_reason,
        }
        domains = summary.domain_ratios(runs, prompts, names)
        return page.Report(
            benchmark="decode",
            model=self.engine.name,
            machine=described,
            ratios=summary.ratios(runs, bandwidths, self.peer.weight_bytes, names)
            | {name: mean(found.values()) for name, found in domains.items()},
            ids_equal=not differing,
            table=summary.table(runs, prompts, names, differing),
            domains=domains,
        )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line; wrong ones end the process with one line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode",
        description="Compares the engine's decoding with mlx-lm's, side by side in one run.",
    )
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id")
    parser.add_argument("--head", default="auto", help="auto, none, or the path of a head")
    parser.add_argument(
        "--prompts", type=whole(1, len(PROMPTS)), default=len(PROMPTS), help="take the first N"
    )
    parser.add_argument("--max-tokens", type=whole(FEWEST_TOKENS), default=64)
    parser.add_argument("--repeats", type=whole(1), default=5, help="rounds after the warm-up")
    parser.add_argument(
        "--skip-stock", action="store_true", help="leave out mlx-lm with MLX's own BLAS"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if it could not be run."""
    options = arguments(given)
    try:
        with Bench(options.model, options.head, stock=not options.skip_stock) as bench:
            prompts = bench.encode(PROMPTS[: options.prompts], options.max_tokens)
            report = bench.measure(prompts, options.max_tokens, options.repeats)
    except (BenchmarkFailed, MTPLXError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(report)) if options.json else page.text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
