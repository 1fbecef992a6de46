"""A short measurement of this machine: what batch shapes suit it."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mtplx_kernel.training.base import Base, load_base, new_head
from mtplx_kernel.training.data import make_starts
from mtplx_kernel.training.distill import GIB, Options, writing_rows
from mtplx_kernel.training.features import Features
from mtplx_kernel.training.optimiser import Rates, fresh
from mtplx_kernel.training.roles import find_roles
from mtplx_kernel.training.rollout import roll
from mtplx_kernel.training.step import Step
from mtplx_kernel.training.text import Text, covered, frequent
from mtplx_kernel.training.train import flatten

WRITING_TIMES = (1, 2)
TRAINING_SHARES = (0.5, 1, 2)
SECONDS = 8.0


def probe(model: Path, options: Options) -> None:
    """Print tokens a second and peak memory of writing and training, at a few batch shapes."""
    print(f"device {mx.device_info()}", flush=True)
    base = load_base(model)
    text = None
    for times in WRITING_TIMES:
        text = _write(base, times * writing_rows(base, options), options)
        mx.clear_cache()
    assert text is not None
    ids = frequent(text, base.target.vocabulary, options.draft_vocab)
    share = covered(text, base.target.vocabulary, ids)
    print(f"draft vocabulary covers {share:.3f} of {int(text.sampled.sum())} answer tokens")
    head = new_head(base, mx.array(ids), options.seed)
    base.target.tap(head.taps)
    for share in TRAINING_SHARES:
        rows = max(1, int(share * options.rows))
        if rows * 2 > len(text.tokens):
            continue
        step = Step(base, head, options.depth, Rates())
        _train(base, head, step, text, replace(options, rows=rows))
        # The step left its own stand-ins in the head.
        head = new_head(base, mx.array(ids), options.seed)
        mx.clear_cache()


def _write(base: Base, rows: int, options: Options) -> Text:
    roles = find_roles(base.tokenizer, base.end_ids)
    rng = random.Random(options.seed)
    starts = make_starts(base.tokenizer, roles, rows, options.length, rng)
    mx.reset_peak_memory()
    marks: list[float] = []
    rolled = roll(
        base.target,
        starts,
        options.length,
        roles=roles,
        key=mx.random.key(options.seed),
        tick=lambda _: marks.append(time.monotonic()),
    )
    middle, end = marks[len(marks) // 2], marks[-1]
    late = rows * (len(marks) - len(marks) // 2 - 1) / max(1e-9, end - middle)
    print(
        f"write {rows} rows: {rows * len(marks) / (end - marks[0]):.0f} tokens/s, second half "
        f"{late:.0f}, peak {mx.get_peak_memory() / GIB:.1f} GiB",
        flush=True,
    )
    return Text(np.array(rolled.tokens), np.array(rolled.sampled), {})


def _train(base: Base, head: Any, step: Step, text: Text, options: Options) -> None:
    features = Features(base, text.tokens, text.sampled, options.rows, 4 * GIB)
    count = min(len(features), 16)
    mx.reset_peak_memory()
    started = time.monotonic()
    for n in range(count):
        features.batch(n)
    mx.synchronize()
    read = time.monotonic() - started
    parameters = flatten(head)
    state = fresh(parameters)
    for report in (False, True):
        parameters, state, figures = step(parameters, state, features.batch(0), 0.1, False, report)
        mx.eval(parameters, state, figures)
    started, taken = time.monotonic(), 0
    while time.monotonic() - started < SECONDS:
        batch = features.batch(taken % count)
        parameters, state, figures = step(parameters, state, batch, 1.0, True, False)
        mx.async_eval(parameters, state)
        mx.eval(figures)
        taken += 1
    mx.synchronize()
    seconds = time.monotonic() - started
    tokens = options.rows * options.length
    print(
        f"train {options.rows} rows: {taken / seconds:.1f} steps/s, "
        f"{taken * tokens / seconds:.0f} tokens/s, states of a batch {1e3 * read / count:.0f} ms, "
        f"peak {mx.get_peak_memory() / GIB:.1f} GiB, alpha "
        f"{np.array(figures)[0].round(3).tolist()}",
        flush=True,
    )
