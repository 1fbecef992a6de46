"""Several drafters as one: each row is drafted for by the one that promises it most."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mtplx_kernel.decoding.budget import Offer, allot
from mtplx_kernel.decoding.depth import Costs
from mtplx_kernel.decoding.drafting import Drafts
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.lookup import LookupDrafter, settled
from mtplx_kernel.decoding.pool import PoolDrafter
from mtplx_kernel.decoding.row import Row


class CombinedDrafter:
    """A head, and texts to copy from.

    Parameters
    ----------
    head
        Drafts at the price of a forward.
    text
        Drafts for nothing, where texts repeat themselves.
    """

    def __init__(self, head: HeadDrafter, text: LookupDrafter | PoolDrafter) -> None:
        self.name = f"{head.name}, {text.name}"
        self.head = head
        self.text = text
        self._by_head: set[str] = set()

    @property
    def costs(self) -> Costs:
        """What the parts of a cycle cost."""
        return self.head.costs

    @costs.setter
    def costs(self, costs: Costs) -> None:
        self.head.costs = self.text.costs = costs

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """Pass the target's states on."""
        self.head.see(rows, starts, features)
        self.text.see(rows, starts, features)

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Let the head work off what it saw."""
        self.head.catch_up(rows)

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Share the verify out over what both offer, and let the better one draft, row by row."""
        sources = self.text.sources(rows, depths)
        made = self.head.offers(rows, depths)
        offers: list[list[Offer]] = [
            own if own and settled(row) else own + [source.offer for source in copies]
            for row, own, copies in zip(rows, made, sources, strict=True)
        ]
        pending = [len(row.ids) - row.committed for row in rows]
        shares = self.head.probed(rows, made, allot(self.costs, pending, offers))
        known: list[list[int] | None] = []
        by: list[str] = []
        for row, share, own, copies in zip(rows, shares, made, sources, strict=True):
            by_head = share.offer is not None and share.offer < len(own)
            if by_head or share.offer is None:
                known.append(None if by_head else [])
                by.append(self.head.name)
            else:
                source = copies[share.offer - len(own)]
                known.append(source.copy(share.count))
                by.append(source.by)
            (self._by_head.add if by_head else self._by_head.discard)(row.request_id)
        counts = [share.count for share in shares]
        computed = self.head.drafts(
            rows, [n if ids is None else 0 for n, ids in zip(counts, known, strict=True)]
        )
        return Drafts(counts, known, computed.compute, by)

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        """The text is judged by every token, the head by its own drafts."""
        self.text.observe(row, drafted, tokens)
        self.head.observe(row, drafted if row.request_id in self._by_head else 0, tokens)

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget the row."""
        self._by_head.discard(row.request_id)
        self.head.release(row, wipe=wipe)
        self.text.release(row)

    def resize(self, slots: int, length: int) -> None:
        """The head's caches have as many slots as the target's."""
        self.head.resize(slots, length)

    def move(self, moves: Sequence[tuple[Row, int]]) -> None:
        """Move what the head knows."""
        self.head.move(moves)

    def recover(self) -> bool:
        """Whether the head's caches are whole."""
        return self.head.recover()
