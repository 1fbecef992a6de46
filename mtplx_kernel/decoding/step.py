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
from mtplx_kernel.decoding.drafting import Drafter, Drafts
from mtplx_kernel.decoding.flight import FAILED, Block, Flight, Verdict
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.models.target import Target

Result = TypeVar("Result")
HEAD = "head"
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
        self._ahead: Flight | None = None

    def prefill(self, row: Row, count: int) -> None:
        """Feed the next `count` prompt tokens of a row."""
        self._ahead = None
        span = Span(row.slot, [row.committed], [count])
        tokens = mx.array([row.ids[row.committed : row.committed + count]])
        hidden = self.target.forward(tokens, self.caches.begin(span))
        mx.eval(hidden, self.caches.arrays)
        self._show([row], span.starts, hidden)
        if self.drafter is not None:
            self._guarded([row], partial(self.drafter.catch_up, [row]), lasting=True)
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
            flight = self._launch(rows, self._work(rows, drafts))
        if self._look_ahead and not any(drafts.counts) and _next_is_known(flight):
            self._ahead = self._launch_ahead(flight)
        verdicts = flight.read()
        if any(v.drafts and FAILED in v.tokens for v in verdicts):
            flight = self._launch_without_drafts(flight, verdicts)
            verdicts = flight.read()
        self._commit(flight, verdicts)
        outcomes = []
        for row, verdict in zip(rows, verdicts, strict=True):
            drafted = len(verdict.drafts)
            if FAILED in verdict.drafts:
                self._fail([row], "its logits are not finite")
            if self.drafter is not None:
                self._guarded([row], partial(self.drafter.observe, row, drafted, verdict.tokens))
            outcomes.append(_emit(row, drafted, verdict.tokens))
        return outcomes

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget a row that ended; `wipe` where its caches may hold values that are not finite."""
        if self._ahead is not None and any(row is flying for flying in self._ahead.rows):
            self._ahead = None
        if self.drafter is not None:
            self._guarded([row], partial(self.drafter.release, row, wipe=wipe))
        if wipe:
            self.caches.clear(row.slot)

    def _propose(self, rows: Sequence[Row]) -> Drafts:
        """Plan the cycle's drafts."""
        depths = [row.depth for row in rows]
        drafter, none = self.drafter, Drafts.none(len(rows))
        if drafter is None or not any(depths):
            return none
        self._guarded(rows, partial(drafter.catch_up, rows), lasting=True)
        depths = [row.depth for row in rows]

        def checked() -> Drafts:
            drafts = drafter.propose(rows, depths)
            for count, ids, depth in zip(drafts.counts, drafts.known, depths, strict=True):
                _check(count, ids, depth, self.target.vocabulary)
            return drafts

        return self._guarded(rows, checked) or none

    def _work(self, rows: Sequence[Row], drafts: Drafts) -> Block:
        """Make the drafts that need a forward, and lay out what the target will verify."""
        computed = None
        if drafts.compute is not None:
            computed = self._guarded(rows, drafts.compute, lasting=True)
            if computed is None:
                drafts = Drafts.of([ids or [] for ids in drafts.known])
        return Block(rows, drafts, computed)

    def _show(self, rows: Sequence[Row], starts: Sequence[int], hidden: mx.array) -> None:
        """Let the drafter see the target's states."""
        if self.drafter is not None and any(row.drafting for row in rows):
            see = partial(self.drafter.see, rows, starts, self.target.features(hidden))
            self._guarded(rows, see, lasting=True)

    def _guarded(
        self, rows: Sequence[Row], call: Callable[[], Result], *, lasting: bool = False
    ) -> Result | None:
        """Call the drafter, which may only cost speed: a failure is reported and gives None.

        Where it is `lasting`, it is a head's, whose states are in doubt then: the rows go on
        without drafts.
        """
        try:
            return call()
        except Exception as error:  # whatever a drafter raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._fail(rows, reason, lasting=lasting)
            return None

    def _fail(self, rows: Sequence[Row], reason: str, *, lasting: bool = True) -> None:
        name = HEAD if lasting or self.drafter is None else self.drafter.name
        for row in rows:
            if row.drafting:
                row.draft_error = f"{name}: {reason}"
                row.drafting = not lasting

    def _launch(self, rows: Sequence[Row], block: Block) -> Flight:
        """Launch the forward over each row's pending tokens and drafts."""
        span = Span(rows[0].slot, block.starts, block.lengths)
        hidden = self.target.forward(block.tokens(span.width), self.caches.begin(span))
        self._show(rows, span.starts, hidden)
        chosen = block.verified(span.width)
        flat = hidden.reshape(-1, hidden.shape[-1])
        if len(chosen) < flat.shape[0]:
            flat = flat[mx.array(chosen)]
        return self._flight(Flight.over(block, self.target.logits(flat)))

    def _launch_ahead(self, flight: Flight) -> Flight:
        """Launch the cycle after one without drafts, on tokens that are still being computed."""
        self.caches.commit([True] * len(flight.rows))
        flight.committed = True
        rows = flight.rows
        span = Span(rows[0].slot, [len(row.ids) for row in rows], [1] * len(rows))
        tokens = mx.maximum(flight.flat, 0)[:, None]  # -1 marks a row that is about to fail
        hidden = self.target.forward(tokens, self.caches.begin(span))
        self._show(rows, span.starts, hidden)
        return self._flight(Flight.ahead(rows, self.target.logits(hidden[:, 0])))

    def _launch_without_drafts(self, flight: Flight, verdicts: Sequence[Verdict]) -> Flight:
        """Judge rows by their own tokens: what is not finite may be a wrong draft's doing."""
        for row, verdict in zip(flight.rows, verdicts, strict=True):
            if verdict.drafts:
                row.draft_error = f"dropped {verdict.drafts!r}: their logits are not finite"
                self.caches.clear(row.slot, row.committed)
        return self._launch(flight.rows, Block(flight.rows, Drafts.none(len(flight.rows))))

    def _flight(self, flight: Flight) -> Flight:
        mx.async_eval(flight.flat, self.caches.arrays)
        return flight

    def _commit(self, flight: Flight, verdicts: Sequence[Verdict]) -> None:
        whole = [v.accepted == len(v.drafts) for v in verdicts]
        if not flight.committed:
            self.caches.commit(whole)
        for row, verdict, right in zip(flight.rows, verdicts, whole, strict=True):
            if right or not self.caches.recurrent:
                row.committed = len(row.ids) + verdict.accepted


def _next_is_known(flight: Flight) -> bool:
    """Whether all is known of the next cycle but its tokens: no drafts, no penalties, room left."""
    rows = flight.rows
    return not flight.drafted and all(r.room > 1 and not r.params.penalised for r in rows)


def _check(count: int, ids: list[int] | None, depth: int, vocabulary: int) -> None:
    if ids is None and count > depth:
        raise ValueError(f"proposed {count} drafts, not at most {depth}")
    if ids is not None and (
        not len(ids) == count <= depth or any(not 0 <= d < vocabulary for d in ids)
    ):
        raise ValueError(f"proposed {ids!r}, not at most {depth} ids below {vocabulary}")


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
