"""The decode step: the only place that turns tokens into tokens.

A cycle over some rows proposes drafts, verifies them in one forward over all rows, accepts the
longest prefix of each row's drafts that the target itself would have produced, adds one token more,
and commits by setting each row's length. Mode ar is the same cycle with no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx_kernel.caching.slots import Caches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.drafting import Drafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.sampling import Draw, draw
from mtplx_kernel.models.target import Target

NOT_FINITE = "the model's logits are not finite (NaN or infinity) at token {position}"


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token and the text that it released."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cycle did for one row.

    Attributes
    ----------
    tokens
        The emitted tokens, in order, without an end token.
    drafted, accepted
        Drafts verified, and how many of them were right.
    ended
        "stop" or "length" once the row has ended.
    error
        Why the row cannot go on.
    """

    row: Row
    tokens: tuple[Token, ...] = ()
    drafted: int = 0
    accepted: int = 0
    ended: str | None = None
    error: str | None = None


class DecodeStep:
    """Runs forwards over rows of one set of caches.

    Parameters
    ----------
    target
        The model.
    caches
        Its caches; without rollback no drafts are made.
    drafter
        Where drafts come from; None drafts nothing.
    """

    def __init__(self, target: Target, caches: Caches, drafter: Drafter | None) -> None:
        self.target = target
        self.caches = caches
        self.drafter = drafter if caches.rollback else None

    def prefill(self, row: Row, count: int) -> None:
        """Feed the next `count` prompt tokens of a row."""
        span = Span(row.slot, [row.committed], [count])
        tokens = mx.array([row.ids[row.committed : row.committed + count]])
        self.target.forward(tokens, self.caches.begin(span))
        mx.eval(self.caches.arrays)
        self.caches.commit([True])
        row.committed += count

    def cycle(self, rows: Sequence[Row]) -> list[Outcome]:
        """Decode at least one token of each row.

        Parameters
        ----------
        rows
            Prefilled rows in neighbouring slots, in slot order.
        """
        drafts = self._propose(rows)
        targets = self._verify(rows, drafts)
        accepted = [_agreement(d, t) for d, t in zip(drafts, targets, strict=True)]
        self._commit(rows, drafts, accepted)
        outcomes = []
        for row, d, t, a in zip(rows, drafts, targets, accepted, strict=True):
            if self.drafter is not None:
                self.drafter.observe(row, len(d), a)
            outcomes.append(_emit(row, len(d), t[: a + 1]))
        return outcomes

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget a row that ended; `wipe` where its caches may hold values that are not finite."""
        if self.drafter is not None:
            self.drafter.release(row)
        if wipe:
            self.caches.clear(row.slot)

    def _propose(self, rows: Sequence[Row]) -> list[list[int]]:
        depths = [row.depth for row in rows]
        if self.drafter is None or not any(depths):
            return [[] for _ in rows]
        try:
            drafts = self.drafter.propose(rows, depths)
            size = self.target.vocabulary
            return [_checked(d, k, size) for d, k in zip(drafts, depths, strict=True)]
        except Exception as error:  # a drafter may only cost speed: report and go on without
            for row in rows:
                row.draft_error = f"{self.drafter.name}: {type(error).__name__}: {error}"
            return [[] for _ in rows]

    def _verify(self, rows: Sequence[Row], drafts: list[list[int]]) -> list[list[int]]:
        """The target's own token after each row's last pending token and after each draft."""
        blocks = [row.pending + d for row, d in zip(rows, drafts, strict=True)]
        span = Span(rows[0].slot, [row.committed for row in rows], [len(b) for b in blocks])
        padded = mx.array([b + [0] * (span.width - len(b)) for b in blocks])
        hidden = self.target.forward(padded, self.caches.begin(span))
        chosen = [
            r * span.width + i
            for r, (block, d) in enumerate(zip(blocks, drafts, strict=True))
            for i in range(len(block) - len(d) - 1, len(block))
        ]
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if len(chosen) < hidden.shape[0]:
            hidden = hidden[mx.array(chosen)]
        tokens = draw(
            self.target.logits(hidden),
            [
                Draw(row.params, row.seed, len(row.ids), row.ids + d, len(d) + 1)
                for row, d in zip(rows, drafts, strict=True)
            ],
        )
        mx.eval(tokens, self.caches.arrays)
        flat: list[int] = tokens.tolist()  # type: ignore[assignment]
        targets, start = [], 0
        for d in drafts:
            targets.append(flat[start : start + len(d) + 1])
            start += len(d) + 1
        return targets

    def _commit(self, rows: Sequence[Row], drafts: list[list[int]], accepted: list[int]) -> None:
        whole = [a == len(d) for d, a in zip(drafts, accepted, strict=True)]
        self.caches.commit(whole)
        for row, a, right in zip(rows, accepted, whole, strict=True):
            if right or not self.caches.recurrent:
                row.committed = len(row.ids) + a


def _agreement(drafts: list[int], targets: list[int]) -> int:
    """Length of the longest prefix of the drafts that the target would have produced."""
    for i, draft in enumerate(drafts):
        if draft != targets[i]:
            return i
    return len(drafts)


def _checked(drafts: list[int], depth: int, vocabulary: int) -> list[int]:
    if len(drafts) > depth or any(not 0 <= d < vocabulary for d in drafts):
        raise ValueError(f"proposed {drafts!r}, not at most {depth} ids below {vocabulary}")
    return drafts


def _emit(row: Row, drafted: int, tokens: list[int]) -> Outcome:
    """Append accepted tokens to the row, up to whatever ends it."""
    emitted: list[Token] = []
    accepted = len(tokens) - 1
    ended = error = None
    for token in tokens:
        if token < 0:
            error = NOT_FINITE.format(position=len(row.ids))
        elif token in row.end_ids:
            ended = "stop"
        else:
            row.ids.append(token)
            emitted.append(Token(token, row.text.add(token)))
            ended = "stop" if row.text.stopped else "length" if row.room <= 0 else None
        if ended or error:
            break
    return Outcome(row, tuple(emitted), drafted, accepted, ended, error)
