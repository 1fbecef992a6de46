"""How many drafts each row of a cycle gets: those that make all rows together fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from mtplx_kernel.decoding.depth import Costs, best_depth

NEVER = float("-inf")
CLOSE = 1e-9
"""Values that differ by less, relatively, are equal: what is left is rounding."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Drafts that a row can have.

    Attributes
    ----------
    rates
        Chances r_1, r_2, ... that draft i is right given that those before it were; the last holds
        for all deeper.
    most, least
        The largest and the smallest number of them.
    by_forward
        Whether a head makes them, whose forwards take time; copies are free.
    """

    rates: Sequence[float]
    most: int
    least: int = 0
    by_forward: bool = False

    def gains(self) -> list[float]:
        """The expected right drafts, by how many are made."""
        deeper = [self.rates[min(i, len(self.rates) - 1)] for i in range(self.most)]
        chances = accumulate(deeper, lambda a, b: a * b)
        return list(accumulate(chances, initial=0.0))


@dataclass(frozen=True, slots=True)
class Allotment:
    """What one row gets: so many drafts of one of its offers.

    Attributes
    ----------
    offer
        The offer's place among the row's; None where it gets no drafts.
    """

    count: int = 0
    offer: int | None = None


def allot(
    costs: Costs, pending: Sequence[int], offers: Sequence[Sequence[Offer]]
) -> list[Allotment]:
    """Share one verify out, so that the most tokens a second are expected of all rows together.

    A cycle yields one token a row and its right drafts, and takes one forward as wide as the widest
    row, the logits of every draft, and as many steps of the head as the deepest row that drafts
    with it. The best ratio of the two is found by Dinkelbach's method (1967): at a given price of
    time each row's best drafts are its own affair, and the price rises to the best ratio.

    Parameters
    ----------
    pending
        Known tokens that each row's block starts with.
    offers
        What each row can have, of which it gets one; none for rows that draft nothing. Rows with an
        offer that has a least number of drafts get drafts.

    Returns
    -------
    list of Allotment
        For each row. For one row that of its offer with the best `best_depth`, of equals the first.
    """
    if len(pending) == 1:
        return [_alone(costs, pending[0], offers[0])]
    if not any(offers):
        return [Allotment()] * len(pending)
    return _Shared(costs, pending, offers).best()


def _alone(costs: Costs, pending: int, offers: Sequence[Offer]) -> Allotment:
    best, value = Allotment(), 0.0
    for i, offer in enumerate(offers):
        choice = best_depth(
            costs.verify.one,
            offer.rates,
            offer.most,
            pending=pending,
            drafting=(lambda depth: costs.drafting(1, depth)) if offer.by_forward else _free,
            least=offer.least,
        )
        if choice.value > value:
            best, value = Allotment(choice.depth, i if choice.depth else None), choice.value
    return best


def _free(depth: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class _Pick:
    """A row's best drafts within some limit, and what they are worth at the price of time."""

    worth: float
    count: int = 0
    offer: int | None = None
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class _Table:
    """A row's picks by the most drafts that it may have, copied ones (or none) and a head's."""

    pending: int
    copied: list[_Pick]
    drafted: list[_Pick]

    def pick(self, width: int, depth: int) -> _Pick:
        """The better one of the two that a width and a depth of the head leave room for."""
        limit = width - self.pending
        copied, drafted = self.copied[limit], self.drafted[min(limit, depth)]
        return drafted if drafted.worth >= copied.worth else copied

    def worths(self) -> tuple[int, list[float], list[float]]:
        """The same as plain numbers: they are read for every width and depth."""
        return self.pending, [p.worth for p in self.copied], [p.worth for p in self.drafted]


class _Shared:
    """One cycle of several rows."""

    def __init__(
        self, costs: Costs, pending: Sequence[int], offers: Sequence[Sequence[Offer]]
    ) -> None:
        self._pending = pending
        self._offers = [[(i, o, o.gains()) for i, o in enumerate(row)] for row in offers]
        rows, each = len(pending), range(len(pending))
        least = [min((o.least for o in row), default=0) for row in offers]
        most = [max((o.most for o in row), default=0) for row in offers]
        self._narrowest = max(pending[r] + least[r] for r in each)
        widest = max(pending[r] + most[r] for r in each)
        self._widths = costs.verify.prices(rows, max(widest, self._narrowest))
        self._draft = costs.verify.draft
        deepest = max((o.most for row in offers for o in row if o.by_forward), default=0)
        self._depths = [costs.drafting(rows, d) for d in range(deepest + 1)]
        self._copies = any(o.most and not o.by_forward for row in offers for o in row)

    def best(self) -> list[Allotment]:
        """The drafts with the best ratio of tokens and time."""
        price = len(self._pending) / self._widths[self._narrowest - 1]
        best, found = 0.0, [_Pick(0.0)] * len(self._pending)
        while True:
            picks = self._at(price)
            value = self._value(picks)
            if value <= best * (1 + CLOSE):
                break
            best, found = value, picks
            if abs(value - price) <= CLOSE * price:
                break
            price = value
        return [Allotment(pick.count, pick.offer) for pick in found]

    def _value(self, picks: Sequence[_Pick]) -> float:
        """Tokens in the time of one plain decode."""
        width = max(p + pick.count for p, pick in zip(self._pending, picks, strict=True))
        depth = max(self._steps(r, pick) for r, pick in enumerate(picks))
        time = self._widths[width - 1] + self._depths[depth]
        time += self._draft * sum(pick.count for pick in picks)
        return (len(picks) + sum(pick.gain for pick in picks)) / time

    def _steps(self, row: int, pick: _Pick) -> int:
        by_head = pick.offer is not None and self._offers[row][pick.offer][1].by_forward
        return pick.count if by_head else 0

    def _at(self, price: float) -> list[_Pick]:
        """The drafts that are worth most beyond what their time is worth at this price."""
        tables = [self._table(r, price) for r in range(len(self._pending))]
        worths = [table.worths() for table in tables]
        best, found = NEVER, (0, 0)
        for width in range(self._narrowest, len(self._widths) + 1):
            for depth in self._sensible(width):
                worth = -price * (self._widths[width - 1] + self._depths[depth])
                for pending, copied, drafted in worths:
                    limit = width - pending
                    copies, drafts = copied[limit], drafted[depth if depth < limit else limit]
                    worth += copies if copies > drafts else drafts
                if worth > best:
                    best, found = worth, (width, depth)
        return [table.pick(*found) for table in tables]

    def _sensible(self, width: int) -> range:
        """The depths of the head that fill a width, or could beside copies that fill it."""
        fills = width - max(self._pending)
        first = 0 if self._copies or width == self._narrowest else fills
        return range(first, min(width - min(self._pending) + 1, len(self._depths)))

    def _table(self, row: int, price: float) -> _Table:
        offers, pending = self._offers[row], self._pending[row]
        # A row whose request fixed the number of drafts has no choice but where they come from.
        nothing = _Pick(NEVER if any(o.least for _, o, _ in offers) else 0.0)
        copies = [known for known in offers if not known[1].by_forward]
        drafts = [known for known in offers if known[1].by_forward]
        room = len(self._widths) - pending
        return _Table(
            pending,
            self._picks(nothing, copies, price, room),
            self._picks(_Pick(NEVER), drafts, price, room),
        )

    def _picks(
        self,
        best: _Pick,
        offers: Sequence[tuple[int, Offer, list[float]]],
        price: float,
        room: int,
    ) -> list[_Pick]:
        """The best of some offers by the most drafts, up to the widest block."""
        found = [best]
        most = max((o.most for _, o, _ in offers), default=0)
        for count in range(1, most + 1):
            cost = price * self._draft * count
            for i, offer, gains in offers:
                if offer.least <= count <= offer.most and gains[count] - cost > best.worth:
                    best = _Pick(gains[count] - cost, count, i, gains[count])
            found.append(best)
        return found + [best] * (room - most)
