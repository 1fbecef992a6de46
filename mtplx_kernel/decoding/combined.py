"""Several drafters as one: each row is drafted for by the one that promises it most."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mtplx_kernel.decoding.drafting import Drafts
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.lookup import LookupDrafter
from mtplx_kernel.decoding.params import Acceptance
from mtplx_kernel.decoding.row import Row


class CombinedDrafter:
    """A head, and the request's own text.

    Parameters
    ----------
    head
        Drafts at the price of a forward.
    lookup
        Drafts for nothing, where the text repeats itself.
    """

    name = "head, lookup"

    def __init__(self, head: HeadDrafter, lookup: LookupDrafter) -> None:
        self.head = head
        self.lookup = lookup
        self._by_head: set[str] = set()

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """Pass the target's states on."""
        self.head.see(rows, starts, features)

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Let the head work off what it saw."""
        self.head.catch_up(rows)

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Plan with both, and let the better one draft, row by row."""
        guesses = self.lookup.guess(rows, depths)
        choices = self.head.plan(rows, depths)
        known: list[list[int] | None] = []
        counts: list[int] = []
        for row, guess, choice in zip(rows, guesses, choices, strict=True):
            by_head = choice.depth > 0 and (choice.value >= guess.value or _settled(row))
            known.append(None if by_head else guess.ids)
            counts.append(choice.depth if by_head else len(guess.ids))
            (self._by_head.add if by_head else self._by_head.discard)(row.request_id)
        computed = self.head.drafts(
            rows, [n if ids is None else 0 for n, ids in zip(counts, known, strict=True)]
        )
        return Drafts(counts, known, computed.compute)

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        """The text is judged by every token, the head by its own drafts."""
        self.lookup.observe(row, drafted, tokens)
        self.head.observe(row, drafted if row.request_id in self._by_head else 0, tokens)

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget the row."""
        self._by_head.discard(row.request_id)
        self.head.release(row, wipe=wipe)
        self.lookup.release(row)


def _settled(row: Row) -> bool:
    """Whether drafts must come from the same place every time.

    Under the rules that are not coupled the ids depend on the drafter; with a depth of its own such
    a request is repeatable only if no earlier request has a say in which one drafts.
    """
    params = row.params
    return params.depth is not None and params.acceptance is not Acceptance.COUPLED
