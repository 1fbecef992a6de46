"""The bare command line of distillation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mtplx_kernel.errors import MTPLXError
from mtplx_kernel.training.distill import Options, distill
from mtplx_kernel.training.probe import probe

UNITS = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    chosen = _parser().parse_args(arguments)
    options = Options(
        tokens=chosen.tokens,
        length=chosen.length,
        conversation=chosen.conversation,
        writing_rows=chosen.writing_rows,
        rows=chosen.rows,
        depth=chosen.depth,
        minutes=chosen.minutes,
        steps=chosen.steps,
        draft_vocab=chosen.draft_vocab,
        seed=chosen.seed,
        cache_gb=chosen.cache_gb,
        judged=chosen.judged,
        begin=chosen.begin,
        aim=chosen.aim,
        width=chosen.width,
    )
    try:
        if chosen.probe:
            probe(chosen.model, options)
        else:
            distill(chosen.model, chosen.out, options, say=say)
    except MTPLXError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def say(line: str) -> None:
    """Put a line on what is done where errors go: into a log, if there is one."""
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    known = Options()
    parser = argparse.ArgumentParser(prog="python -m mtplx_kernel.training.distill")
    parser.add_argument("model", type=Path, help="an mlx-lm model folder")
    parser.add_argument("--out", type=Path, default=Path("distilled"))
    parser.add_argument("--tokens", type=_count, default=known.tokens, help="such as 24M")
    parser.add_argument("--length", type=int, default=known.length)
    parser.add_argument("--conversation", type=int, default=known.conversation)
    parser.add_argument("--writing-rows", type=int)
    parser.add_argument("--rows", type=int, default=known.rows, help="rows of a training step")
    parser.add_argument("--depth", type=int, default=known.depth)
    parser.add_argument("--minutes", type=float, default=known.minutes, help="of training")
    parser.add_argument("--steps", type=int, help="train for so many steps instead")
    parser.add_argument("--draft-vocab", type=int, default=known.draft_vocab)
    parser.add_argument("--seed", type=int, default=known.seed)
    parser.add_argument("--cache-gb", type=float, help="memory for the base's states")
    parser.add_argument("--judged", type=int, default=known.judged, help="prompts a domain")
    parser.add_argument("--from", dest="begin", help="a head to train on")
    parser.add_argument("--aim", type=float, default=known.aim, help="temperature decoded at")
    parser.add_argument("--width", type=int, help="columns of its feed-forward layer")
    parser.add_argument("--probe", action="store_true", help="only measure speed and memory")
    return parser


def _count(text: str) -> int:
    unit = UNITS.get(text[-1:].upper())
    try:
        return int(float(text[:-1]) * unit) if unit else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not a count such as 24M") from error
