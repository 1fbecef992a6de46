"""The decode step: the only place that turns tokens into tokens.

A cycle over some rows proposes drafts, verifies them in one forward over all rows, accepts the
longest prefix of each row's drafts that the target itself would have produced, adds one token more,
and commits by setting each row's length. Mode ar is the same cycle with no drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import mlx.core as mx

from mtplx_kernel.caching.slots import Caches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.drafting import Drafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.sampling import Draw, draw
from mtplx_kernel.models.target import Target

FAILED = -1
"""In place of a token whose logits are not finite."""
Result = TypeVar("Result")
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
        Drafts verified, and how many of them were right and came before the end.
    ended
        "stop" or "length" once the row has ended.
    end_token
        Whether a token ended it, which is not among `tokens`.
    error
        Why the row cannot go on.
    """

    row: Row
    tokens: tuple[Token, ...] = ()
    drafted: int = 0
    accepted: int = 0
    ended: str | None = None
    end_token: bool = False
    error: str | None = None


@dataclass(slots=True)
class _Flight:
    """A verify forward that was launched and not yet read.

    Attributes
    ----------
    starts
        Where each row's caches stood.
    targets
        The target's own tokens, not yet evaluated: for each row after its last pending token and
        after each draft, one row after the other.
    committed
        Whether the caches already took it as right.
    """

    rows: Sequence[Row]
    starts: list[int]
    drafts: list[list[int]]
    targets: mx.array
    committed: bool = False

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether this is the next cycle of just these rows."""
        return (
            len(rows) == len(self.rows)
            and all(a is b for a, b in zip(rows, self.rows, strict=True))
            and [row.committed for row in rows] == self.starts
        )

    def read(self) -> list[list[int]]:
        """Each row's targets: the one host synchronisation of a cycle."""
        flat: list[int] = self.targets.tolist()  # type: ignore[assignment]
        targets, start = [], 0
        for d in self.drafts:
            targets.append(flat[start : start + len(d) + 1])
            start += len(d) + 1
        return targets


class DecodeStep:
    """Runs forwards over rows of one set of caches.

    Where no row drafts, the next cycle's forward is launched on the tokens of this one before they
    are read, so that building it overlaps with computing. If a row ends, that forward is dropped:
    like a wrong draft, it left nothing behind that counts. Drafts that come up while a forward is
    in flight wait for the cycle after it.

    Parameters
    ----------
    target
        The model.
    caches
        Its caches; without rollback no drafts are made.
    drafter
        Where drafts come from; None drafts nothing.
    look_ahead
        Whether to launch ahead. It pays on a GPU, and on a CPU whose BLAS leaves a core free.
    """

    def __init__(
        self,
        target: Target,
        caches: Caches,
        drafter: Drafter | None,
        *,
        look_ahead: bool = True,
    ) -> None:
        self.target = target
        self.caches = caches
        self.drafter = drafter if caches.rollback else None
        self._look_ahead = look_ahead
        self._ahead: _Flight | None = None

    def prefill(self, row: Row, count: int) -> None:
        """Feed the next `count` prompt tokens of a row."""
        self._ahead = None
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
        flight, self._ahead = self._ahead, None
        drafts = self._propose(rows)
        if flight is None or not flight.fits(rows):
            flight = self._launch(rows, drafts)
        if self._look_ahead and not any(drafts) and _next_is_known(flight):
            self._ahead = self._launch_ahead(flight)
        targets = flight.read()
        if any(d and FAILED in t for d, t in zip(flight.drafts, targets, strict=True)):
            flight = self._launch_without_drafts(flight)
            targets = flight.read()
        accepted = [_agreement(d, t) for d, t in zip(flight.drafts, targets, strict=True)]
        self._commit(flight, accepted)
        outcomes = []
        for row, d, t, a in zip(rows, flight.drafts, targets, accepted, strict=True):
            if self.drafter is not None:
                self._guarded([row], partial(self.drafter.observe, row, len(d), a))
            outcomes.append(_emit(row, len(d), t[: a + 1]))
        return outcomes

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget a row that ended; `wipe` where its caches may hold values that are not finite."""
        if self._ahead is not None and any(row is flying for flying in self._ahead.rows):
            self._ahead = None
        if self.drafter is not None:
            self._guarded([row], partial(self.drafter.release, row))
        if wipe:
            self.caches.clear(row.slot)

    def _propose(self, rows: Sequence[Row]) -> list[list[int]]:
        depths = [row.depth for row in rows]
        drafter, size = self.drafter, self.target.vocabulary
        none: list[list[int]] = [[] for _ in rows]
        if drafter is None or not any(depths):
            return none

        def checked() -> list[list[int]]:
            drafts = drafter.propose(rows, depths)
            return [_checked(d, k, size) for d, k in zip(drafts, depths, strict=True)]

        return self._guarded(rows, checked) or none

    def _guarded(self, rows: Sequence[Row], call: Callable[[], Result]) -> Result | None:
        """Call the drafter, which may only cost speed: a failure is reported and gives None."""
        try:
            return call()
        except Exception as error:  # whatever a drafter raises
            name = self.drafter.name if self.drafter else "drafter"
            for row in rows:
                row.draft_error = f"{name}: {type(error).__name__}: {error}"
            return None

    def _launch(self, rows: Sequence[Row], drafts: list[list[int]]) -> _Flight:
        """Launch the forward over each row's pending tokens and drafts."""
        blocks = [row.pending + d for row, d in zip(rows, drafts, strict=True)]
        starts = [row.committed for row in rows]
        span = Span(rows[0].slot, starts, [len(block) for block in blocks])
        padded = mx.array([block + [0] * (span.width - len(block)) for block in blocks])
        hidden = self.target.forward(padded, self.caches.begin(span))
        chosen = [
            r * span.width + i
            for r, (block, d) in enumerate(zip(blocks, drafts, strict=True))
            for i in range(len(block) - len(d) - 1, len(block))
        ]
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if len(chosen) < hidden.shape[0]:
            hidden = hidden[mx.array(chosen)]
        draws = [
            Draw(row.params, row.seed, len(row.ids), row.ids + d, len(d) + 1)
            for row, d in zip(rows, drafts, strict=True)
        ]
        return self._flight(rows, starts, drafts, draw(self.target.logits(hidden), draws))

    def _launch_ahead(self, flight: _Flight) -> _Flight:
        """Launch the cycle after one without drafts, on tokens that are still being computed."""
        self.caches.commit([True] * len(flight.rows))
        flight.committed = True
        rows = flight.rows
        starts = [len(row.ids) for row in rows]
        span = Span(rows[0].slot, starts, [1] * len(rows))
        tokens = mx.maximum(flight.targets, 0)[:, None]  # -1 marks a row that is about to fail
        hidden = self.target.forward(tokens, self.caches.begin(span))
        draws = [Draw(row.params, row.seed, len(row.ids) + 1, (), 1) for row in rows]
        logits = self.target.logits(hidden[:, 0])
        return self._flight(rows, starts, [[] for _ in rows], draw(logits, draws))

    def _launch_without_drafts(self, flight: _Flight) -> _Flight:
        """Judge rows by their own tokens: what is not finite may be a wrong draft's doing."""
        for row, drafts in zip(flight.rows, flight.drafts, strict=True):
            if drafts:
                row.draft_error = f"dropped {drafts!r}: their logits are not finite"
                self.caches.clear(row.slot, row.committed)
        return self._launch(flight.rows, [[] for _ in flight.rows])

    def _flight(
        self, rows: Sequence[Row], starts: list[int], drafts: list[list[int]], targets: mx.array
    ) -> _Flight:
        mx.async_eval(targets, self.caches.arrays)  # type: ignore[no-untyped-call]
        return _Flight(list(rows), starts, drafts, targets)

    def _commit(self, flight: _Flight, accepted: list[int]) -> None:
        whole = [a == len(d) for d, a in zip(flight.drafts, accepted, strict=True)]
        if not flight.committed:
            self.caches.commit(whole)
        for row, a, right in zip(flight.rows, accepted, whole, strict=True):
            if right or not self.caches.recurrent:
                row.committed = len(row.ids) + a


def _next_is_known(flight: _Flight) -> bool:
    """Whether all is known of the next cycle but its tokens: no drafts, no penalties, room left."""
    rows = flight.rows
    return not any(flight.drafts) and all(r.room > 1 and not r.params.penalised for r in rows)


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
    ended = error = None
    end_token = False
    for token in tokens:
        if token == FAILED:
            error = NOT_FINITE.format(position=len(row.ids))
        elif token in row.end_ids:
            ended, end_token = "stop", True
        else:
            row.ids.append(token)
            emitted.append(Token(token, row.text.add(token)))
            ended = "stop" if row.text.stopped else "length" if row.room <= 0 else None
        if ended or error:
            break
    accepted = min(len(tokens) - 1, len(emitted) + end_token)
    return Outcome(row, tuple(emitted), drafted, accepted, ended, end_token, error)
