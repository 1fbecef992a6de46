"""Forks: several continuations of one request, verified as rows of one forward.

The row gets twins, which have its ids and slots beside its own. Each is verified with other drafts;
the one that is accepted furthest is what the row becomes. What a token is depends on the request
and the position alone, so the ids are those of the row by itself, only more of them a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.budget import Offer
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.continuations import Continuations
from mtplx_kernel.decoding.depth import Costs, Rate
from mtplx_kernel.decoding.drafting import Drafter, Drafts
from mtplx_kernel.decoding.flight import FAILED, Verdict
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.lookup import NGRAM_SIZES, PRIORS, LookupDrafter
from mtplx_kernel.decoding.params import MAX_DEPTH, Acceptance
from mtplx_kernel.decoding.pool import PoolDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep

ALONE = (1,)
LONG_DECAY = 0.99
TWIN_PRIORS = (0.3, 0.2, 0.15, 0.1)
"""How often the first draft of the first twin, the second, ... is believed to be right where those
before it were wrong, before any was tried; the last holds for all further ones."""


@dataclass(slots=True)
class ForkFigures:
    """What came of the forks of one request.

    Attributes
    ----------
    self_spec_rows_launched, self_spec_rows_committed
        Twins that were verified, and those that the row became.
    fork_attempts, fork_wins
        Cycles with twins, and those in which a twin was accepted further than the row itself.
    cohort_width
        Most rows that a cycle had.
    """

    self_spec_rows_launched: int = 0
    self_spec_rows_committed: int = 0
    fork_attempts: int = 0
    fork_wins: int = 0
    cohort_width: int = 1


@dataclass(slots=True)
class TwinRates:
    """How often each twin's first draft was right where those before it were wrong."""

    rates: list[Rate] = field(default_factory=list)

    def observe(self, accepted: Sequence[int]) -> None:
        """Count one verify, by how many drafts of the row and of each twin were accepted."""
        while len(self.rates) < len(accepted) - 1:
            self.rates.append(Rate(LONG_DECAY))
        for rate, before, own in zip(
            self.rates, accumulate(accepted, max), accepted[1:], strict=False
        ):
            if not before:
                rate.observe(1, int(own > 0))

    def missed(self, twins: int) -> float:
        """The chance that so many twins are all wrong at once, given that the row is."""
        chance = 1.0
        for i in range(twins):
            prior = TWIN_PRIORS[min(i, len(TWIN_PRIORS) - 1)]
            chance *= 1 - (self.rates[i].given(prior) if i < len(self.rates) else prior)
        return chance


class ForkTimes:
    """What cycles with forks take, in plain decodes; each is worked out once.

    Parameters
    ----------
    costs
        What the parts of a cycle cost.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._known: dict[tuple[int, int, int, bool], list[float]] = {}

    def by_depth(self, width: int, most: int, pending: int, by_forward: bool) -> list[float]:
        """Times of a cycle with `width` rows, by the drafts of each row, from 0 to `most`."""
        key = (width, most, pending, by_forward)
        if key not in self._known:
            prices = self.costs.verify.prices(width, pending + most)[pending - 1 :]
            self._known[key] = [
                price
                + self.costs.verify.draft * width * depth
                + (self._drafting(width, depth) if by_forward else 0.0)
                for depth, price in enumerate(prices)
            ]
        return self._known[key]

    def _drafting(self, width: int, depth: int) -> float:
        """The head's first pass is over one row, those that follow it over all."""
        drafting = self.costs.drafting
        return drafting(1, 1) + drafting(width, depth) - drafting(width, 1) if depth else 0.0


@dataclass(frozen=True, slots=True)
class Fork:
    """How wide and how deep, and the expected tokens in the time of one plain decode."""

    width: int
    depth: int
    value: float


def best_fork(
    times: ForkTimes, offer: Offer, twins: TwinRates, widths: Sequence[int], *, pending: int = 1
) -> Fork:
    """The fork with the most expected tokens a second.

    With r_1 the chance that the row's own first draft is right, and m that all twins' are wrong
    where it is wrong, a fork's first drafts are right with the chance 1 - (1 - r_1) m; deeper ones
    are as good as the row's own.

    Parameters
    ----------
    offer
        The drafts that the row can have.
    widths
        Numbers of rows to consider; 1 is the row alone.
    pending
        Known tokens that each block starts with.
    """
    gains, first = offer.gains(), offer.rates[0]
    best = Fork(widths[0], max(1, offer.least), 0.0)
    for width in widths:
        some = 1 - (1 - first) * twins.missed(width - 1)
        more = some / first if first else 1.0
        taken = times.by_depth(width, offer.most, pending, offer.by_forward)
        for depth in range(max(1, offer.least), offer.most + 1):
            value = (1 + gains[depth] * more) / taken[depth]
            if value > best.value:
                best = Fork(width, depth, value)
    return best


class ForkingStep(DecodeStep):
    """A decode step in which an only row may have twins; without `forking` it is the plain one.

    Parameters
    ----------
    as for `DecodeStep`
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._widths: Sequence[int] = ALONE
        self._twins: list[Row] = []
        self._figures = ForkFigures()
        self._rates = {by_head: TwinRates() for by_head in (False, True)}
        self._by_head = False
        self._times = ForkTimes(Costs())
        self._text: tuple[list[int], Continuations] | None = None

    @contextmanager
    def forking(self, widths: Sequence[int]) -> Iterator[ForkFigures]:
        """Fork within this context, every cycle in the width of these that promises most."""
        self._widths, self._figures = widths, ForkFigures()
        try:
            yield self._figures
        finally:
            self._widths, self._text = ALONE, None
            self._retire()

    def why_not(self, row: Row) -> str | None:
        """Why a row cannot fork; None where it can."""
        params = row.params
        if not row.drafting:
            return "the request drafts nothing"
        if self.drafter is None:
            return "nothing drafts for this model"
        if _parts(self.drafter) == (None, None):
            return f"{self.drafter.name} drafts one continuation only"
        if params.acceptance is not Acceptance.COUPLED and not params.greedy:
            return f"acceptance {params.acceptance} is proved for one continuation only"
        if row.omit_bonus:
            return "the request omits the token after its drafts"
        return None

    def promises(self, row: Row, widths: Sequence[int]) -> list[Fork]:
        """The best fork of each width for a request that has not begun, from all that came before.

        Its own text may turn out to repeat itself, or not: it is taken for one that does.
        """
        assert self.drafter is not None
        head, text = _parts(self.drafter)
        fixed = row.params.depth
        most, least = (MAX_DEPTH, 0) if fixed is None else (fixed, fixed)
        offers = []
        if head is not None:
            deepest = most if head.head.stages == 1 else min(most, head.head.stages)
            offers.append(Offer(head.rates, deepest, min(least, deepest), by_forward=True))
        if text is not None:
            offers.append(Offer([PRIORS[NGRAM_SIZES[0]]], most, least))
        times = self._timed(head, text)
        return [
            max(
                (best_fork(times, o, self._rates[o.by_forward], [width]) for o in offers),
                key=lambda fork: fork.value,
            )
            for width in widths
        ]

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Free the slot of a row that ended, and those of its twins."""
        if self._twins and self._twins[0].ids is row.ids:
            self._retire(wipe=wipe)
        super().release(row, wipe=wipe)

    def recover(self) -> bool:
        """As for any step; twins that were lost are copied anew."""
        whole = super().recover()
        if not whole:
            for twin in self._twins:
                twin.rewind()
        return whole

    def _retire(self, *, wipe: bool = False) -> None:
        while self._twins:
            super().release(self._twins.pop(), wipe=wipe)

    def _widened(self, rows: list[Row], drafts: Drafts) -> tuple[list[Row], Drafts]:
        """Give an only row that drafts twins, where that promises more."""
        row = rows[0]
        if self._widths == ALONE or len(rows) > 1 or not drafts.counts[0] or self.why_not(row):
            return rows, drafts
        plan = self._guarded(rows, partial(self._planned, row, drafts))
        if plan is None or plan[0] == 1:
            return rows, drafts
        width, drafts_of = plan
        seated = self._seated(row, width - 1)
        if seated[0] is not row:
            return rows, drafts  # a drafter takes the first for the row itself
        self._synchronise(seated)
        self._figures.fork_attempts += 1
        self._figures.self_spec_rows_launched += width - 1
        self._figures.cohort_width = max(self._figures.cohort_width, width)
        return seated, drafts_of(seated)

    def _planned(
        self, row: Row, drafts: Drafts
    ) -> tuple[int, Callable[[list[Row]], Drafts]] | None:
        """How many rows, and what makes their drafts; None where there is nothing to choose."""
        assert self.drafter is not None
        head, text = _parts(self.drafter)
        times, pending = self._timed(head, text), len(row.ids) - row.committed
        own = drafts.known[0]
        self._by_head = own is None
        rates = self._rates[self._by_head]
        if own is None:
            assert head is not None
            (offer,) = head.offers([row], [row.depth])[0]
            fork = best_fork(times, offer, rates, self._widths, pending=pending)
            return fork.width, lambda rows: head.fork(rows, fork.depth)
        if text is None:
            return None
        (sources,) = text.sources([row], [len(own)])
        chances = next((s.offer.rates for s in sources if s.copy(len(own)) == own), None)
        others = self._text_of(row).besides(own, max(self._widths) - 1)
        if chances is None or not others:
            return None
        widths = sorted({min(width, 1 + len(others)) for width in self._widths})
        offer = Offer(chances, len(own), least=len(own))
        fork = best_fork(times, offer, rates, widths, pending=pending)
        return fork.width, lambda rows: Drafts.of([own, *others][: len(rows)])

    def _text_of(self, row: Row) -> Continuations:
        if self._text is None or self._text[0] is not row.ids:
            self._text = row.ids, Continuations(row.ids)
        return self._text[1]

    def _timed(
        self, head: HeadDrafter | None, text: LookupDrafter | PoolDrafter | None
    ) -> ForkTimes:
        """What cycles take, by the costs in force."""
        priced = head if head is not None else text
        assert priced is not None
        if priced.costs is not self._times.costs:
            self._times = ForkTimes(priced.costs)
        return self._times

    def _seated(self, row: Row, twins: int) -> list[Row]:
        """The row and so many twins, in neighbouring slots."""
        while len(self._twins) < twins:
            name = f"{row.request_id} twin {len(self._twins) + 1}"
            twin = replace(row, request_id=name, slot=None, pool=None)
            self.admit(twin)
            self._twins.append(twin)
        rows = [row, *self._twins[:twins]]
        self._bring_together(rows, len(row.ids) + MAX_DEPTH)
        return sorted(rows, key=lambda seated: seated.place)

    def _synchronise(self, rows: Sequence[Row]) -> None:
        """Copy to the twins' slots what they lack of the row's committed tokens."""
        assert isinstance(self.caches, SlotCaches)
        row, twins = rows[0], rows[1:]
        for start in {twin.committed for twin in twins} - {row.committed}:
            slots = [twin.place for twin in twins if twin.committed == start]
            self.caches.copy(row.place, slots, start, row.committed)
        for twin in twins:
            twin.committed = row.committed

    def _narrowed(
        self, rows: Sequence[Row], verdicts: Sequence[Verdict]
    ) -> list[tuple[Row, Verdict, Verdict]]:
        """Let the row become the twin that was accepted furthest; it learns from its own drafts."""
        row, own = rows[0], verdicts[0]
        if len(rows) == 1 or rows[1].ids is not row.ids:
            return super()._narrowed(rows, verdicts)
        accepted = [verdict.accepted for verdict in verdicts]
        best = accepted.index(max(accepted))
        if own.drafts:
            self._rates[self._by_head].observe(accepted)
        self._figures.fork_wins += best > 0
        self._figures.self_spec_rows_committed += best > 0
        self._become(row, rows[best])
        head = _parts(self.drafter)[0]
        if head is not None:
            self._guarded([row], partial(head.adopt, rows, rows[best]), lasting=True)
        own = next((verdict for verdict in verdicts if FAILED in verdict.drafts), own)
        return [(row, verdicts[best], own)]

    def _become(self, row: Row, twin: Row) -> None:
        """Copy what a twin has committed beyond the row: each slot holds true tokens only."""
        if twin.committed > row.committed:
            assert isinstance(self.caches, SlotCaches)
            self.caches.copy(twin.place, [row.place], row.committed, twin.committed)
            row.committed = twin.committed


def _parts(
    drafter: Drafter | None,
) -> tuple[HeadDrafter | None, LookupDrafter | PoolDrafter | None]:
    """What of a drafter can draft several continuations: a head, and texts."""
    if isinstance(drafter, CombinedDrafter):
        return drafter.head, drafter.text
    if isinstance(drafter, HeadDrafter):
        return drafter, None
    return None, drafter if isinstance(drafter, LookupDrafter | PoolDrafter) else None
