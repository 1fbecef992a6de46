"""The seam through which drafts come. A drafter can change the speed only, never the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mtplx_kernel.decoding.row import Row


@dataclass(frozen=True, slots=True)
class Computed:
    """Drafts that a forward makes, not yet evaluated.

    Attributes
    ----------
    tokens
        int32, shape (rows, deepest): each row's drafts, then anything; -1 where a draft's logits
        are not finite.
    logprobs
        For each row the log-probabilities that its drafts were drawn from, shape (drafts, columns);
        None where the draft counts as certain.
    columns
        Ids of the columns, shape (columns,); None where column n is id n.
    """

    tokens: mx.array
    logprobs: Sequence[mx.array | None]
    columns: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a drafter has in mind for the rows of a cycle: planned, not yet worked for.

    Attributes
    ----------
    counts
        How many tokens for each row.
    known
        The ids of rows whose drafts need no forward, else None.
    compute
        Makes the drafts of the other rows; None where there are none.
    by
        Who drafts for each row; empty where it is the drafter as a whole.
    """

    counts: list[int]
    known: list[list[int] | None]
    compute: Callable[[], Computed] | None = None
    by: Sequence[str] = ()

    @classmethod
    def of(cls, ids: list[list[int]], by: Sequence[str] = ()) -> Drafts:
        """Drafts that are known already."""
        return cls([len(i) for i in ids], list(ids), by=by)

    @classmethod
    def none(cls, rows: int) -> Drafts:
        """No drafts."""
        return cls.of([[] for _ in range(rows)])

    def filled(self, ids: Sequence[list[int]]) -> Drafts:
        """These, and for some rows, which have none of these, ids that are known."""
        known = [own or old for own, old in zip(ids, self.known, strict=True)]
        counts = [len(own) or old for own, old in zip(ids, self.counts, strict=True)]
        return Drafts(counts, known, self.compute, self.by)

    def check(self, depths: Sequence[int], vocabulary: int) -> None:
        """Raise ValueError if a row has more drafts than its depth, or one that is no id."""
        for count, ids, depth in zip(self.counts, self.known, depths, strict=True):
            if ids is None and count > depth:
                raise ValueError(f"proposed {count} drafts, not at most {depth}")
            if ids is not None and (
                not len(ids) == count <= depth or any(not 0 <= d < vocabulary for d in ids)
            ):
                raise ValueError(f"proposed {ids!r}, not at most {depth} ids below {vocabulary}")


class Drafter(Protocol):
    """What the decode step asks of a drafter."""

    name: str

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """Take the target's tapped states of a forward, which may turn out to follow wrong drafts.

        Parameters
        ----------
        starts
            Position of each row's first state.
        features
            Shape (rows, width, states), right-padded; not yet evaluated.
        """
        ...

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Work off what was seen, up to the tokens that are known."""
        ...

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Plan at most `depths[i]` tokens to follow `rows[i].ids`, for each row."""
        ...

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        """Learn what a verify gave: `tokens` follow `row.ids`, all but the last were drafts."""
        ...

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget a row that ended; `wipe` where a forward of it failed."""
        ...

    def resize(self, slots: int, length: int) -> None:
        """Have as many slots as the target's caches, for rows of at most `length` tokens."""
        ...

    def move(self, moves: Sequence[tuple[Row, int]]) -> None:
        """Follow rows to other slots, all at once; each row still has its old one."""
        ...

    def recover(self) -> bool:
        """After a failed forward: whether all is whole; if not, all rows are forgotten."""
        ...


class Slotless:
    """A drafter without caches has nothing to do where rows come, go and move."""

    def resize(self, slots: int, length: int) -> None:
        """Nothing lives in slots."""

    def move(self, moves: Sequence[tuple[Row, int]]) -> None:
        """Nothing lives in slots."""

    def recover(self) -> bool:
        """Nothing can be lost."""
        return True
