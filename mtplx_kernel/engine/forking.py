"""The width executor that ships with hyper: it verifies several continuations of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from mtplx_kernel.decoding.forking import ALONE, ForkingStep
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.seats import lane
from mtplx_kernel.scheduling.gate import Closure, HyperCohortPlan, HyperRequestMeta

WIDEST = 4


class ForkExecutor:
    """Plans how many continuations of a request are verified at once, and has them verified.

    Parameters
    ----------
    step
        What the request is decoded with.
    row_of
        The row of an open request; None where there is none of that id.
    fits
        Whether rows of so many tokens, in one set of slots, have room in the memory.
    refusal
        Why the model cannot decode several rows in one forward; None where it can.
    width
        How many rows every fork is to have; None lets each cycle choose what promises most, up to
        four.
    """

    def __init__(
        self,
        step: ForkingStep,
        row_of: Callable[[str], Row | None],
        *,
        fits: Callable[[Sequence[int]], bool],
        refusal: str | None = None,
        width: int | None = None,
    ) -> None:
        self._step = step
        self._row_of = row_of
        self._fits = fits
        self._refusal = refusal
        self._width = width

    def plan(self, request: HyperRequestMeta) -> HyperCohortPlan:
        """The width that promises the most tokens a second; 1 where forks cannot be or do not pay.

        What it costs is measured; how often drafts are right is known from earlier requests.
        """
        row = self._row_of(request.request_id)
        if row is None:
            return HyperCohortPlan(1, "no open request has this id")
        reason = self._refusal or self._step.why_not(row)
        if reason is not None:
            return HyperCohortPlan(1, reason)
        longest = row.prompt_length + row.room
        wished = range(2, WIDEST + 1) if self._width is None else [self._width]
        widths = [width for width in wished if self._fits([longest] * lane(width))]
        if not widths:
            return HyperCohortPlan(1, f"the caches of {wished[0]} rows do not fit in the memory")
        if self._width is not None:
            return HyperCohortPlan(self._width, "the width was asked for")
        forks = self._step.promises(row, [*ALONE, *widths])
        best = max(forks, key=lambda fork: fork.value)
        alone = f"{forks[0].value:.2f} tokens in the time of one plain decode"
        if best.width == 1:
            return HyperCohortPlan(1, f"one row promises most, {alone}")
        return HyperCohortPlan(
            best.width, f"{best.width} rows promise {best.value:.2f}, one row {alone}"
        )

    def run_cohort(self, plan: HyperCohortPlan, singleton: Closure) -> dict[str, Any]:
        """Run the request with forks, and add to its result what came of them."""
        widths = [plan.width] if self._width is not None else range(1, plan.width + 1)
        with self._step.forking(widths) as figures:
            result = singleton()
        return {**result, **asdict(figures)}
