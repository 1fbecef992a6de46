"""The training loop: schedule, progress, checkpoints."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.models.progress import ProgressBar
from mtplx_kernel.training.base import Base
from mtplx_kernel.training.features import Features
from mtplx_kernel.training.optimiser import Arrays, Rates, fresh
from mtplx_kernel.training.step import Step

WARM_UP = 0.03
LATE = 0.5
"""From this share of a training on, the loss holds the chance of acceptance itself."""
SOON = 0.05
"""The same for a head that was trained before."""
SECONDS_A_CHECKPOINT = 60.0
SECONDS_A_LINE = 10.0
STEPS_AHEAD = 2
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"


class Interrupted(Exception):
    """Training was asked to stop; its checkpoint is saved."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to train, and in what steps.

    Attributes
    ----------
    minutes
        Time of training; of no effect if `steps` is set.
    steps
        How many steps; None goes by time.
    late
        Share of it after which the loss holds the chance of acceptance itself.
    aim
        Temperature of the decoding whose acceptance that is.
    """

    depth: int
    minutes: float
    steps: int | None
    seed: int
    late: float = LATE
    aim: float = 1.0
    rates: Rates = field(default_factory=Rates)


@dataclass(slots=True)
class Place:
    """Where training stands."""

    parameters: Arrays
    state: Arrays
    step: int = 0
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    """What the last report said."""

    def progress(self, plan: Plan) -> float:
        """From 0 to 1."""
        if plan.steps is not None:
            return min(1.0, self.step / plan.steps)
        return min(1.0, self.seconds / (60 * plan.minutes))


def train(
    base: Base,
    head: DistilledHead,
    features: Features,
    plan: Plan,
    checkpoint: Path,
    *,
    stopped: Callable[[], bool] = lambda: False,
    progress: bool = False,
    say: Callable[[str], object] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Train a head in place, from a checkpoint if there is one.

    Parameters
    ----------
    base, head
        The model, tapped for the head, and the head.
    features
        The text.
    plan
        How long.
    checkpoint
        File that holds where training stands; left behind at the end.
    stopped
        Whether to stop now.
    progress
        Show a progress bar where somebody watches.
    say
        Takes a line on how it went, at the end; where there is no bar, every few seconds too.
    clock
        Seconds.

    Returns
    -------
    dict
        The figures of the end: steps, tokens passed, seconds, alpha and KL by depth.

    Raises
    ------
    Interrupted
        If `stopped` said so; the checkpoint is saved.
    """
    place = _restore(checkpoint) or _start(head)
    step = Step(base, head, plan.depth, plan.rates, plan.aim)
    order = _Order(len(features), plan.seed)
    waiting: deque[mx.array] = deque()
    saved = last = clock()
    first = True
    with _Journal(plan, features, clock, say, progress=progress) as journal:
        while (share := place.progress(plan)) < 1.0:
            if stopped():
                _save(checkpoint, place)
                raise Interrupted
            batch = features.batch(order.at(place.step))
            report = journal.due(place)
            place.parameters, place.state, figures = step(
                place.parameters, place.state, batch, heat(share), share >= plan.late, report
            )
            mx.async_eval(place.parameters, place.state, figures)
            waiting.append(figures)
            if len(waiting) > STEPS_AHEAD:
                mx.eval(waiting.popleft())
            if first:
                # A GPU's kernels are compiled in the first step: that is no training.
                mx.eval(waiting.popleft())
                first, last = False, clock()
            now = clock()
            place.step, place.seconds, last = place.step + 1, place.seconds + now - last, now
            journal.tick(place)
            if report:
                journal.write(place, figures, batch.tokens.size)
            if now - saved >= SECONDS_A_CHECKPOINT:
                _save(checkpoint, place)
                saved = clock()
    _save(checkpoint, place)
    head.update(tree_unflatten(list(place.parameters.items())))
    mx.eval(head.parameters())
    return place.figures | {"steps": place.step, "seconds": round(place.seconds, 1)}


def heat(progress: float) -> float:
    """What learning rates are multiplied by: a short rise, then a cosine down to zero."""
    return min(1.0, (progress + 1e-4) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * progress))


class _Order:
    """Which batch each step takes: all of them, shuffled anew each time round."""

    def __init__(self, batches: int, seed: int) -> None:
        self._batches, self._seed = batches, seed
        self._round = -1
        self._order: Any = None

    def at(self, step: int) -> int:
        number, place = divmod(step, self._batches)
        if number != self._round:
            self._round = number
            self._order = np.random.default_rng([self._seed, number]).permutation(self._batches)
        return int(self._order[place])


class _Journal:
    """Says how training goes: a bar for people, a line every few seconds where there is none."""

    def __init__(
        self,
        plan: Plan,
        features: Features,
        clock: Callable[[], float],
        say: Callable[[str], object],
        *,
        progress: bool,
    ) -> None:
        self._plan, self._features, self._clock, self._say = plan, features, clock, say
        self._bar = ProgressBar(wanted=progress, total=100, desc="training", bar_format=BAR)
        self._next = clock()
        self._before: tuple[int, float] | None = None
        self._line = ""

    def __enter__(self) -> _Journal:
        return self

    def __exit__(self, *_: object) -> None:
        drawn = not self._bar.disable
        self._bar.close()
        if drawn and self._line:
            self._say(self._line)

    def due(self, place: Place) -> bool:
        last = self._plan.steps is not None and place.step + 1 == self._plan.steps
        return last or self._clock() >= self._next

    def tick(self, place: Place) -> None:
        self._bar.update(100 * place.progress(self._plan) - self._bar.n)

    def write(self, place: Place, figures: mx.array, tokens: int) -> None:
        alpha, kl = np.array(figures).astype(float).round(3).tolist()
        now = self._clock()
        then = self._before or (place.step - 1, now)
        rate = (place.step - then[0]) * tokens / (now - then[1]) if now > then[1] else 0.0
        self._before, self._next = (place.step, now), now + SECONDS_A_LINE
        place.figures = {"alpha": alpha, "kl": kl, "tokens": place.step * tokens}
        self._line = (
            f"train {place.progress(self._plan):.1%}: step {place.step}, "
            f"{place.step * tokens / 1e6:.1f}M tokens, {rate / 1e3:.0f}k/s, "
            f"alpha {alpha}, KL {kl}, kept {self._features.kept_bytes / 2**30:.1f} GiB, "
            f"peak {mx.get_peak_memory() / 2**30:.1f} GiB"
        )
        if self._bar.disable:
            self._say(self._line)
        else:
            drafts = " ".join(f"{a:.2f}" for a in alpha)
            self._bar.set_postfix_str(f"step {place.step}, {rate / 1e3:.0f}k tok/s, {drafts}")


def _start(head: DistilledHead) -> Place:
    parameters = flatten(head)
    return Place(parameters, fresh(parameters))


def flatten(head: DistilledHead) -> Arrays:
    """A head's parameters by name."""
    parameters: Any = tree_flatten(head.parameters(), destination={})
    return dict(parameters)


def _save(path: Path, place: Place) -> None:
    arrays = {f"parameters.{name}": a for name, a in place.parameters.items()}
    arrays |= {f"state.{name}": a for name, a in place.state.items()}
    draft = path.with_name(f"writing-{path.name}")
    stands = {"step": place.step, "seconds": place.seconds, "figures": place.figures}
    mx.save_safetensors(str(draft), arrays, {"place": json.dumps(stands)})
    os.replace(draft, path)


def _restore(path: Path) -> Place | None:
    if not path.exists():
        return None
    loaded: Any = mx.load(str(path), return_metadata=True)
    arrays, metadata = loaded
    mx.eval(arrays)  # now: the file is about to be replaced

    def part(name: str) -> Arrays:
        return {k.removeprefix(name): a for k, a in arrays.items() if k.startswith(name)}

    return Place(part("parameters."), part("state."), **json.loads(metadata["place"]))
