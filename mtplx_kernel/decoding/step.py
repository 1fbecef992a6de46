"""The decode step: the only place that turns tokens into tokens.

A cycle over some rows proposes drafts, verifies them in one forward over all rows, accepts the
longest prefix of each row's drafts that the target itself would have produced, adds one token more,
and commits by setting each row's length. Mode ar is the same cycle with no drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import mlx.core as mx

from mtplx_kernel.caching.prefix import PrefixStore
from mtplx_kernel.caching.slots import Caches, Move, SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.drafting import Drafter, Drafts
from mtplx_kernel.decoding.flight import FAILED, Block, Flight, Verdict
from mtplx_kernel.decoding.outcome import Outcome, Token, emit
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.decoding.prefixes import RowPrefixes
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.seats import Seats, lane
from mtplx_kernel.models.target import Target

__all__ = ["DecodeStep", "Outcome", "Token"]

Result = TypeVar("Result")
HEAD, GRAMMAR = "head", "grammar"


class DecodeStep:
    """Runs forwards over rows of one set of caches, which join and leave between them.

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
        self._by: dict[str, str] = {}
        self._seats = Seats(caches.slots)
        self._prefixes = RowPrefixes(caches, self.drafter)

    def admit(self, row: Row) -> None:
        """Give a new row a slot; where none is free, the caches grow to the next lane."""
        if self._seats.full:
            self._resize(lane(self._seats.slots + 1), [*self._seats.rows, row])
        self._seats.take(row)
        row.committed = 0

    def prefill(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """Feed the next `counts[i]` known tokens of `rows[i]`, of all rows in one forward."""
        self._ahead = None
        fed = [(row, count) for row, count in zip(rows, counts, strict=True) if count]
        self._bring_together([row for row, _ in fed], max(r.committed + n for r, n in fed))
        fed.sort(key=lambda pair: pair[0].place)
        rows, counts = [row for row, _ in fed], [count for _, count in fed]
        span = Span(rows[0].place, [row.committed for row in rows], counts)
        tokens = [row.ids[row.committed : row.committed + n] for row, n in fed]
        padded = [ids + [0] * (span.width - len(ids)) for ids in tokens]
        hidden = self.target.forward(mx.array(padded), self.caches.begin(span))
        mx.eval(hidden, self.caches.arrays)
        self._show(rows, span.starts, hidden, counts)
        if self.drafter is not None:
            self._guarded(rows, partial(self.drafter.catch_up, rows), lasting=True)
        self.caches.commit([True] * len(rows))
        for row, count in fed:
            row.committed += count

    def cycle(self, rows: Sequence[Row], *, again: bool = True) -> list[Outcome]:
        """Decode at least one token of each row.

        Parameters
        ----------
        rows
            Admitted and prefilled rows, in any order.
        again
            Whether the same rows will decode next: if not, nothing is launched ahead.

        Returns
        -------
        list of Outcome
            In the order of `rows`.
        """
        self._bring_together(rows, max(len(row.ids) for row in rows) + MAX_DEPTH)
        seated = sorted(rows, key=lambda row: row.place)
        flight, self._ahead = self._ahead, None
        drafts = self._propose(seated)
        if flight is None or not flight.fits(seated):
            seated, drafts = self._widened(seated, drafts)
            flight = self._launch(seated, self._work(seated, drafts))
        if self._look_ahead and again and not any(drafts.counts) and _next_is_known(flight):
            self._ahead = self._launch_ahead(flight)
        verdicts = flight.read()
        if any(v.drafts and FAILED in v.tokens for v in verdicts):
            flight = self._launch_without_drafts(flight, verdicts)
            verdicts = flight.read()
        self._commit(flight, verdicts)
        outcomes = {}
        for row, verdict, own in self._narrowed(seated, verdicts):
            self._learn(row, own)
            outcomes[row.request_id] = emit(row, verdict, self._by.get(row.request_id))
        return [outcomes[row.request_id] for row in rows]

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Free the slot of a row that ended; `wipe` where it may hold what is not finite."""
        if row.slot is None:
            return
        if self._ahead is not None and any(row is flying for flying in self._ahead.rows):
            self._ahead = None
        if self.drafter is not None:
            self._guarded([row], partial(self.drafter.release, row, wipe=wipe))
        if wipe:
            self.caches.clear(row.place)
        self._prefixes.release(row, wipe=wipe)
        self._seats.leave(row)
        if not self._seats.rows and self._seats.slots > 1:
            self._resize(1, [])

    def recover(self) -> bool:
        """After a failed forward: whether the rows that were not in it can go on.

        Returns
        -------
        bool
            If not, their caches depended on it and are dropped: each must `rewind`.
        """
        self._ahead = None
        if self.drafter is not None:
            self._check_head("a forward failed")
        try:
            mx.eval(self.caches.arrays)
        except Exception:  # what made the forward fail, and was raised there
            self.caches.drop()
            for row in self._seats.rows:
                if self.drafter is not None:
                    self._guarded([row], partial(self.drafter.release, row, wipe=True))
            return False
        return True

    def restore(self, row: Row, store: PrefixStore) -> int:
        """Begin an admitted row with what is stored of its ids; how many need not be fed."""
        self._bring_together([row], len(row.ids))
        return self._prefixes.restore(row, store)

    def save(self, row: Row, store: PrefixStore) -> None:
        """Store a row's caches: after each of its prefills, and at its end before the release."""
        self._prefixes.save(row, store)

    def _propose(self, rows: Sequence[Row]) -> Drafts:
        """Plan the cycle's drafts."""
        self._by = {}
        depths = [row.depth for row in rows]
        drafter, none = self.drafter, Drafts.none(len(rows))
        if drafter is None or not any(depths):
            return none
        self._guarded(rows, partial(drafter.catch_up, rows), lasting=True)
        # Where a grammar leaves one way to go on, nobody need guess.
        forced = [
            row.constraint.forced(row.depth) if row.constraint is not None and row.depth else []
            for row in rows
        ]
        depths = [0 if ids else row.depth for row, ids in zip(rows, forced, strict=True)]

        def checked() -> Drafts:
            drafts = drafter.propose(rows, depths)
            drafts.check(depths, self.target.vocabulary)
            return drafts

        drafts = (self._guarded(rows, checked) or none).filled(forced)
        names = drafts.by or [drafter.name] * len(rows)
        self._by = {
            row.request_id: GRAMMAR if ids else name
            for row, ids, name in zip(rows, forced, names, strict=True)
        }
        return drafts

    def _work(self, rows: Sequence[Row], drafts: Drafts) -> Block:
        """Make the drafts that need a forward, and lay out what the target will verify."""
        computed = None
        if drafts.compute is not None:
            computed = self._guarded(rows, drafts.compute, lasting=True)
            if computed is None:
                drafts = Drafts.of([ids or [] for ids in drafts.known])
        return Block(rows, drafts, computed)

    def _resize(self, slots: int, rows: Sequence[Row]) -> None:
        """Have another number of slots, in buffers that are as long as these rows need."""
        length = max((len(row.ids) for row in rows), default=0)
        self.caches.resize(slots, length)
        if self.drafter is not None:
            resize = partial(self.drafter.resize, slots, length)
            self._guarded(self._seats.rows, resize, lasting=True)
        self._seats.resize(slots)

    def _bring_together(self, rows: Sequence[Row], end: int) -> None:
        """Make rows neighbours, for a forward that stores up to position `end`."""
        slots = lane(len(self._seats.rows))
        if slots < self._seats.slots and end > self.caches.room:
            # The buffers are about to grow: not those of slots that no row needs.
            self._move(self._seats.packed())
            self._resize(slots, self._seats.rows)
        self._move(self._seats.together(rows))

    def _move(self, moves: Sequence[tuple[Row, int]]) -> None:
        if not moves:
            return
        self._ahead = None
        assert isinstance(self.caches, SlotCaches)
        self.caches.move([Move(row.place, slot, row.committed) for row, slot in moves])
        if self.drafter is not None:
            self._guarded(self._seats.rows, partial(self.drafter.move, moves), lasting=True)
        self._seats.move(moves)

    def _show(
        self,
        rows: Sequence[Row],
        starts: Sequence[int],
        hidden: mx.array,
        counts: Sequence[int] | None = None,
    ) -> None:
        """Let the drafter see the target's states, each row's first `counts` if they are given."""
        if self.drafter is None or not any(row.drafting for row in rows):
            return
        features = self.target.features(hidden)
        if counts is None or len(rows) == 1:
            see = partial(self.drafter.see, rows, starts, features)
            self._guarded(rows, see, lasting=True)
            return
        for r, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
            own = features[r : r + 1, :count]
            self._guarded([row], partial(self.drafter.see, [row], [start], own), lasting=True)

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
            if lasting:
                self._check_head(reason)
            return None

    def _check_head(self, reason: str) -> None:
        """Give up drafts with a head for all rows if what it knew of them is lost."""
        if self.drafter is not None and not self.drafter.recover():
            self._fail(self._seats.rows, reason)

    def _fail(self, rows: Sequence[Row], reason: str, *, lasting: bool = True) -> None:
        name = HEAD if lasting or self.drafter is None else self.drafter.name
        for row in rows:
            if row.drafting:
                row.draft_error = f"{name}: {reason}"
                row.drafting = not lasting

    def _launch(self, rows: Sequence[Row], block: Block) -> Flight:
        """Launch the forward over each row's pending tokens and drafts."""
        span = Span(rows[0].place, block.starts, block.lengths)
        hidden = self.target.forward(block.tokens(span.width), self.caches.begin(span))
        self._show(rows, span.starts, hidden)
        chosen = block.verified(span.width)
        flat = hidden.reshape(-1, hidden.shape[-1])
        if len(chosen) < flat.shape[0]:
            flat = flat[mx.array(chosen)]
        logits = self.target.logits(flat)
        if any(row.constraint is not None for row in rows):
            mx.async_eval(logits)  # masks are filled while it is computed
        return self._flight(Flight.over(block, logits))

    def _launch_ahead(self, flight: Flight) -> Flight:
        """Launch the cycle after one without drafts, on tokens that are still being computed."""
        self.caches.commit([True] * len(flight.rows))
        flight.committed = True
        rows = flight.rows
        span = Span(rows[0].place, [len(row.ids) for row in rows], [1] * len(rows))
        tokens = mx.maximum(flight.flat, 0)[:, None]  # -1 marks a row that is about to fail
        hidden = self.target.forward(tokens, self.caches.begin(span))
        self._show(rows, span.starts, hidden)
        return self._flight(Flight.ahead(rows, self.target.logits(hidden[:, 0])))

    def _launch_without_drafts(self, flight: Flight, verdicts: Sequence[Verdict]) -> Flight:
        """Judge rows by their own tokens: what is not finite may be a wrong draft's doing."""
        for row, verdict in zip(flight.rows, verdicts, strict=True):
            if verdict.drafts:
                row.draft_error = f"dropped {verdict.drafts!r}: their logits are not finite"
                self.caches.clear(row.place, row.committed)
        return self._launch(flight.rows, Block(flight.rows, Drafts.none(len(flight.rows))))

    def _flight(self, flight: Flight) -> Flight:
        mx.async_eval(flight.arrays, self.caches.arrays)
        return flight

    def _commit(self, flight: Flight, verdicts: Sequence[Verdict]) -> None:
        # A state that went past the row's end is of no use to the next turn of its chat.
        whole = [
            v.accepted == len(v.drafts) and v.bonus and row.end_ids.isdisjoint(v.drafts)
            for row, v in zip(flight.rows, verdicts, strict=True)
        ]
        if not flight.committed:
            self.caches.commit(whole)
        for row, verdict, right in zip(flight.rows, verdicts, whole, strict=True):
            if right or not self.caches.recurrent:
                row.committed = len(row.ids) + len(verdict.taken) - 1

    def _learn(self, row: Row, verdict: Verdict) -> None:
        """Tell the drafter what came of its drafts."""
        if FAILED in verdict.drafts:
            self._fail([row], "its logits are not finite")
        if self.drafter is not None:
            forced = self._by.get(row.request_id) == GRAMMAR
            drafted = 0 if forced else len(verdict.drafts)
            self._guarded([row], partial(self.drafter.observe, row, drafted, verdict.tokens))

    def _widened(self, rows: list[Row], drafts: Drafts) -> tuple[list[Row], Drafts]:
        """The rows and drafts that a cycle verifies for what was proposed: here just those."""
        return rows, drafts

    def _narrowed(
        self, rows: Sequence[Row], verdicts: Sequence[Verdict]
    ) -> list[tuple[Row, Verdict, Verdict]]:
        """Each row of the cycle, what it gets, and what came of its own drafts: here the same."""
        return [(row, verdict, verdict) for row, verdict in zip(rows, verdicts, strict=True)]


def _next_is_known(flight: Flight) -> bool:
    """Whether all is known of the next cycle but its tokens: no drafts or conditions, room left."""
    rows = flight.rows
    return not flight.drafted and all(r.room > 1 and not r.conditioned for r in rows)
