"""How a model runs best here: its caches, its BLAS threads and costs, measured or recalled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtplx_kernel.caching.slots import Caches, SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.depth import CostCurve
from mtplx_kernel.decoding.drafting import Drafter
from mtplx_kernel.decoding.fitting import (
    choose_caches,
    decode_timer,
    measure_costs,
    measure_head,
)
from mtplx_kernel.decoding.head_drafting import HeadCost, HeadDrafter
from mtplx_kernel.decoding.lookup import LookupDrafter
from mtplx_kernel.models import blas, measured
from mtplx_kernel.models.head import LoadedHead, running
from mtplx_kernel.models.load import LoadedModel
from mtplx_kernel.models.measured import Measured
from mtplx_kernel.models.threads import available_cpus, pinned_threads


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
    """

    rollback_reason: str | None
    look_ahead: bool
    measured: Measured | None
    origin: str
    key: str

    @property
    def curve(self) -> CostCurve | None:
        """What a verify costs by the length of its block."""
        m = self.measured
        return None if m is None else CostCurve(m.tokens, m.seconds)

    @property
    def tuned_depth(self) -> int | None:
        """The depth that was tuned for; None leaves it to the drafters."""
        tuned = None if self.measured is None else self.measured.tuned
        return None if tuned is None else tuned.depth

    def drafter(self, loaded: LoadedModel, head_caches: SlotCaches | None) -> Drafter | None:
        """What drafts: the head where there is one, beside the request's own text."""
        curve = self.curve
        if self.measured is None or curve is None:
            return None
        lookup = LookupDrafter(curve)
        if loaded.head is None or head_caches is None:
            return lookup
        decode = self.measured.seconds[0]
        cost = HeadCost(**{part: s / decode for part, s in self.measured.head.items()})
        head = HeadDrafter(loaded.head.head, head_caches, loaded.target.vocabulary, curve, cost)
        return CombinedDrafter(head, lookup)


def fit(loaded: LoadedModel) -> tuple[Fit, Caches, SlotCaches | None]:
    """Choose caches, set the BLAS threads, and measure costs unless they are known.

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
        curve, steady = measure_costs(target, caches, look_ahead=look_ahead)
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
    return Fit(reason, look_ahead, known, origin, key), caches, head_caches


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


def _head_seconds(loaded: LoadedModel, caches: SlotCaches) -> dict[str, float]:
    assert loaded.head is not None
    with running(loaded.head.facts.source):
        return measure_head(loaded.head.head, caches, loaded.target)
