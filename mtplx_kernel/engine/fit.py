"""How a model runs best here: its caches, its BLAS threads and costs, measured or recalled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import mlx.core as mx

from mtplx_kernel.caching.slots import Caches, SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.depth import CostCurve, Costs, CostSurface, HeadCost
from mtplx_kernel.decoding.drafting import Drafter
from mtplx_kernel.decoding.fitting import (
    CURVE_BLOCKS,
    LANE_BLOCKS,
    choose_caches,
    decode_timer,
    forwards,
    measure_costs,
    measure_head,
    measure_lane,
    measure_position,
)
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.pool import PoolDrafter
from mtplx_kernel.models import blas, measured
from mtplx_kernel.models.head import LoadedHead, running
from mtplx_kernel.models.load import LoadedModel
from mtplx_kernel.models.measured import Lanes, Measured
from mtplx_kernel.models.progress import Stages, untold
from mtplx_kernel.models.threads import available_cpus, pinned_threads

LANES = (2, 4, 8, 16)
"""Numbers of rows that are measured; what lies between and beyond follows from them."""


class PricedDrafter(Drafter, Protocol):
    """A drafter that weighs what drafts cost; its costs may be renewed between cycles."""

    costs: Costs


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found, as plain data that any thread may hold.

    Attributes
    ----------
    rollback_reason
        Why the caches cannot take tokens back; None where they can.
    look_ahead
        Whether the next cycle is launched before this one is read.
    measured
        Costs; None where no drafts are made, so that they do not matter.
    origin
        Where the costs come from, for people.
    key
        What they are kept under.
    lanes
        Costs of several rows; None before `measure_width`.
    """

    rollback_reason: str | None
    look_ahead: bool
    measured: Measured | None
    origin: str
    key: str
    lanes: Lanes | None = None

    @property
    def costs(self) -> Costs:
        """What the parts of a cycle cost, as far as it was measured."""
        m, lanes = self.measured, self.lanes
        if m is None:
            return Costs()
        one = CostCurve(m.tokens, m.seconds)
        head = {1: m.head} if m.head else {}
        wide = {}
        if lanes is not None:
            wide = {n: CostCurve(lanes.tokens, s) for n, s in lanes.seconds.items()}
            head |= lanes.head
        return Costs(
            CostSurface(one, wide, 0.0 if lanes is None else lanes.position),
            {n: HeadCost(**{p: s / m.seconds[0] for p, s in h.items()}) for n, h in head.items()},
        )

    @property
    def throughput(self) -> dict[int, float]:
        """Rows a second of a plain decode, by the number of rows."""
        wide = {} if self.lanes is None else self.lanes.seconds
        one = {} if self.measured is None else {1: self.measured.seconds}
        return {rows: rows / seconds[0] for rows, seconds in sorted((one | dict(wide)).items())}

    @property
    def tuned_depth(self) -> int | None:
        """The depth that was tuned for; None leaves it to the drafters."""
        tuned = None if self.measured is None else self.measured.tuned
        return None if tuned is None else tuned.depth

    def drafter(self, loaded: LoadedModel, head_caches: SlotCaches | None) -> PricedDrafter | None:
        """What drafts: the head where there is one, beside the texts of request and cohort."""
        if self.measured is None:
            return None
        text = PoolDrafter(self.costs)
        if loaded.head is None or head_caches is None:
            return text
        head = HeadDrafter(loaded.head.head, head_caches, loaded.target.vocabulary, self.costs)
        return CombinedDrafter(head, text)


def measure_width(loaded: LoadedModel, fit: Fit, width: int, stages: Stages = untold) -> Fit:
    """Measure what batches up to a width cost, as far as that is not known yet.

    Takes some seconds on the thread that owns the model, in caches of its own.

    Parameters
    ----------
    fit
        What is known.
    width
        Most rows of a forward.
    stages
        Told of it.

    Returns
    -------
    Fit
        With the lanes up to the first that is no narrower than `width`; unchanged where the model's
        caches hold one row only.

    Raises
    ------
    ModelUnusable
        If the head fails.
    """
    known = fit.lanes
    wanted = [n for n in LANES if n < 2 * width]
    missing = [n for n in wanted if width > 1 and (known is None or n not in known.seconds)]
    if fit.measured is None or not missing:
        return fit
    seconds = {} if known is None else dict(known.seconds)
    head = {} if known is None else dict(known.head)
    all_steady = True
    what = f"measuring batches of {Path(loaded.facts.name).name}"
    with stages(len(missing) * forwards(LANE_BLOCKS), what, "run") as tick:
        for rows in missing:
            curve, steady = measure_lane(loaded.target, rows, look_ahead=fit.look_ahead, tick=tick)
            seconds[rows], all_steady = curve.seconds, all_steady and steady
            if loaded.head is not None:
                head[rows] = _head_seconds(loaded, SlotCaches(loaded.head.head, rows), rows)
    if known is None:
        lanes = Lanes(LANE_BLOCKS, seconds, head, measure_position(loaded.target))
    else:
        lanes = replace(known, seconds=seconds, head=head)
    if all_steady:
        measured.keep_lanes(fit.key, lanes)
    return replace(fit, lanes=lanes)


def fit(loaded: LoadedModel, stages: Stages = untold) -> tuple[Fit, Caches, SlotCaches | None]:
    """Choose caches, set the BLAS threads, and measure costs unless they are known.

    Parameters
    ----------
    loaded
        The model.
    stages
        Told of the measuring.

    Returns
    -------
    tuple
        What was found, the model's caches, and the head's, with as many slots (None without a
        head, or where it cannot draft as the model's caches take no tokens back).

    Raises
    ------
    ModelUnusable
        If the head fails when it is first run.
    """
    target = loaded.target
    caches, reason = choose_caches(target)
    head_caches = None
    if loaded.head is not None and reason is None:
        head_caches = _head_caches(loaded, loaded.head, caches.slots)
    elif loaded.head is not None:
        target.tap(("final",))  # no layer is watched for a head that never drafts
    status = blas.current()
    key = measured.key(
        folder=Path(loaded.facts.path),
        precision=loaded.facts.precision,
        device=loaded.facts.device,
        blas=status.description if status is not None else "none",
        head=loaded.head.facts.identity if loaded.head is not None else "none",
    )
    known, why = measured.recall(key)
    if known is not None and head_caches is not None and not known.head:
        known, why = None, "the cached one is without the head"
    if known is not None and known.threads is not None and pinned_threads() is None:
        blas.set_threads(known.threads)
    else:
        blas.calibrate(decode_timer(target, caches))
    idle_core = (blas.threads() or 1) < available_cpus()
    look_ahead = loaded.facts.device == "gpu" or idle_core
    origin = "not measured: nothing drafts"
    if not caches.rollback:
        known = None
    elif known is not None:
        origin = f"measured here on {known.date}"
    else:
        with stages(
            forwards(CURVE_BLOCKS), f"measuring {Path(loaded.facts.name).name}", "run"
        ) as tick:
            curve, steady = measure_costs(target, caches, look_ahead=look_ahead, tick=tick)
            parts = {} if head_caches is None else _head_seconds(loaded, head_caches)
        known = Measured(
            curve.tokens,
            curve.seconds,
            parts,
            blas.threads(),
            tuned=measured.recall_tuned(key),
        )
        problem = measured.keep(key, known) if steady else "the machine was too busy to keep it"
        origin = f"measured at this load: {problem or why}"
    lanes = None if known is None else measured.recall_lanes(key)
    return Fit(reason, look_ahead, known, origin, key, lanes), caches, head_caches


def _head_caches(loaded: LoadedModel, head: LoadedHead, slots: int) -> SlotCaches:
    """The head's caches, after it was run once: costs that are known are not measured anew."""
    with running(head.facts.source):
        caches = SlotCaches(head.head, slots)
        hidden = loaded.target.forward(mx.array([[0]]), None)
        states = head.head.feed(
            loaded.target.features(hidden), mx.array([[0]]), caches.begin(Span(0, [0], [1]))
        )
        mx.eval(head.head.logits(states[:, -1]), caches.arrays)
        return SlotCaches(head.head, slots)


def _head_seconds(loaded: LoadedModel, caches: SlotCaches, rows: int = 1) -> dict[str, float]:
    assert loaded.head is not None
    with running(loaded.head.facts.source):
        return measure_head(loaded.head.head, caches, loaded.target, rows)
