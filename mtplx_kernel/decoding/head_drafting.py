"""Drafts from an MTP head: fed with the target's own states, then with its own guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mtplx_kernel.caching.prefix import Buffers, HeadMark
from mtplx_kernel.caching.slots import Move, SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.budget import Allotment, Offer, allot
from mtplx_kernel.decoding.depth import COMMON_WEIGHT, PROBE_EVERY, Costs, Ladder
from mtplx_kernel.decoding.draft_sampling import Drawn, draw_drafts, rank_drafts
from mtplx_kernel.decoding.drafting import Computed, Drafts
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.heads.base import Head

FIRST_PRIOR = 0.65
"""How often a draft is believed to be right before any was tried."""
LONG_DECAY = 0.998
FEED_AT = 16
"""Known pairs that a row may collect before the head is fed with them, drafts or not."""


@dataclass(slots=True)
class _State:
    """What the head knows of a row.

    Attributes
    ----------
    fed
        How many of the row's pairs its cache holds.
    seen
        The target's states from there on: where each piece starts, and the piece, shape
        (1, width, states). A piece holds up to where the next one starts.
    last
        For heads of several stages, their states of the last pair that was fed.
    judged_at
        Length of the row when a draft was last verified.
    """

    judged_at: int
    fed: int = 0
    seen: list[tuple[int, mx.array]] = field(default_factory=list)
    last: mx.array | None = None
    ladder: Ladder = field(default_factory=Ladder)


class HeadDrafter:
    """Guesses with a head, as deep as promises the most tokens a second.

    Parameters
    ----------
    head
        The head.
    caches
        Its caches, with a slot for each of the target's.
    vocabulary
        How many ids the target knows.
    costs
        What the parts of a cycle cost.
    """

    name = "head"

    def __init__(
        self,
        head: Head,
        caches: SlotCaches,
        vocabulary: int,
        costs: Costs | None = None,
    ) -> None:
        self.head = head
        self.caches = caches
        self.costs = costs or Costs()
        self._vocabulary = vocabulary
        self._states: dict[str, _State] = {}
        self._ladder = Ladder(LONG_DECAY, COMMON_WEIGHT)

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """Keep the states until the tokens after them are known."""
        for r, (row, start) in enumerate(zip(rows, starts, strict=True)):
            if row.drafting:
                piece = features if len(rows) == 1 else features[r : r + 1]
                self._state(row).seen.append((start, piece))

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Feed the known pairs of these neighbours, all in one forward, where one has many."""
        counts = [self._piled(row) for row in rows]
        if max(counts) >= FEED_AT:
            self._feed(rows, counts)
            self._start()

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Plan drafts for each row, as many as make all together fastest."""
        offers = self.offers(rows, depths)
        pending = [len(row.ids) - row.committed for row in rows]
        shares = self.probed(rows, offers, allot(self.costs, pending, offers))
        return self.drafts(rows, [share.count for share in shares])

    def offers(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[Offer]]:
        """What the head can draft for each row: one offer, or none."""
        return [self._offer(row, depth) for row, depth in zip(rows, depths, strict=True)]

    def probed(
        self, rows: Sequence[Row], offers: Sequence[Sequence[Offer]], shares: list[Allotment]
    ) -> list[Allotment]:
        """Let rows without drafts have one where it is long since one was verified.

        Parameters
        ----------
        offers
            Of each row the head's, which is its first of all.
        shares
            What each row is to get.
        """
        due = [
            bool(own) and not share.count and self._due(row)
            for row, own, share in zip(rows, offers, shares, strict=True)
        ]
        if any(due) and not any(share.count for share in shares):
            # The forwards are paid for: rows that are not due yet need none of their own soon.
            due = [bool(own) for own in offers]
        return [Allotment(1, 0) if d else s for d, s in zip(due, shares, strict=True)]

    def drafts(self, rows: Sequence[Row], counts: list[int]) -> Drafts:
        """Drafts of these depths, to be computed."""
        if not any(counts):
            return Drafts.none(len(rows))
        known: list[list[int] | None] = [None if count else [] for count in counts]
        return Drafts(counts, known, lambda: self._compute(rows, counts))

    @property
    def rates(self) -> list[float]:
        """Chances that draft i is right given that those before it were, over all rows so far."""
        return self._ladder.given([FIRST_PRIOR])

    def fork(self, rows: Sequence[Row], count: int) -> Drafts:
        """Drafts for one row and its twins: each goes on from another first draft.

        Parameters
        ----------
        rows
            The row and then its twins, which have its ids, in neighbouring slots.
        """
        known: list[list[int] | None] = [None] * len(rows)
        return Drafts([count] * len(rows), known, lambda: self._compute_forks(rows, count))

    def adopt(self, rows: Sequence[Row], best: Row) -> None:
        """Let the first row have the states seen for `best`, one of its twins; forget the rest."""
        if self._state(best).seen:
            self._state(rows[0]).seen[-1] = self._state(best).seen[-1]
        for twin in rows[1:]:
            self._state(twin).seen = []

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        """Update the rates of the depths that were verified."""
        if drafted:
            state = self._state(row)
            state.judged_at = len(row.ids)
            state.ladder.observe(drafted, len(tokens) - 1)
            self._ladder.observe(drafted, len(tokens) - 1)

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Forget the row; after a failure its slot may hold anything."""
        self._states.pop(row.request_id, None)
        if wipe or row.draft_error is not None:
            self.caches.clear(row.place)

    def resize(self, slots: int, length: int) -> None:
        """Have as many slots as the target's caches."""
        self.caches.resize(slots, length)

    def move(self, moves: Sequence[tuple[Row, int]]) -> None:
        """Move what the head was fed of these rows; of the others nothing is kept."""
        known = [(row, slot, self._states.get(row.request_id)) for row, slot in moves]
        self.caches.move(
            [Move(row.place, slot, state.fed) for row, slot, state in known if state is not None]
        )

    def recover(self) -> bool:
        """Whether the head's caches and states can be read; if not, they are dropped."""
        try:
            self._start()
        except Exception:  # what made a forward fail, and was raised there
            self.caches.drop()
            self._states.clear()
            return False
        return True

    def save(self, row: Row, position: int) -> HeadMark | None:
        """What it takes to go on at a position; None where a part of that is gone."""
        state = self._states.get(row.request_id)
        if state is None:
            return None
        # Pairs past the position end with tokens that another row need not have.
        fed = min(state.fed, position)
        seen = _between(state.seen, fed, position)
        found = 0 if seen is None else seen.shape[1]
        if found < position - fed or (state.last is not None and fed < state.fed):
            return None
        return HeadMark(fed, *(None if a is None else mx.array(a) for a in (seen, state.last)))

    def save_buffers(self, row: Row, fed: int) -> Buffers:
        """Copies of what the row's first `fed` pairs have in the head's caches."""
        return self.caches.save(row.place, fed)

    def restore(self, row: Row, position: int, mark: HeadMark, buffers: Buffers) -> None:
        """Make the row one that was fed up to a position."""
        self.caches.restore(row.place, mark.fed, buffers, [])
        seen = [] if mark.seen is None else [(mark.fed, mark.seen[:, : position - mark.fed])]
        self._states[row.request_id] = _State(len(row.ids), mark.fed, seen, mark.last)

    def _offer(self, row: Row, most: int) -> list[Offer]:
        state = self._state(row)
        if not most or not state.seen:
            return []
        if self.head.stages > 1:
            most = min(most, self.head.stages)
        rates = state.ladder.given(self.rates)
        return [Offer(rates, most, 0 if row.params.depth is None else most, by_forward=True)]

    def _piled(self, row: Row) -> int:
        """How many pairs the row has collected, without the last known one.

        That one is kept back: the first draft comes from its output.
        """
        state = self._states.get(row.request_id)
        if state is None or not state.seen:
            return 0
        start, piece = state.seen[-1]
        return max(0, min(len(row.ids) - 1, start + piece.shape[1]) - 1 - state.fed)

    def _due(self, row: Row) -> bool:
        return len(row.ids) - self._state(row).judged_at >= PROBE_EVERY

    def _state(self, row: Row) -> _State:
        return self._states.setdefault(row.request_id, _State(judged_at=len(row.ids)))

    def _compute(self, rows: Sequence[Row], counts: Sequence[int]) -> Computed:
        """Feed the new pairs of the rows that draft, then draft one token after the other."""
        known = [
            len(row.ids) - 1 - self._state(row).fed if count else 0
            for row, count in zip(rows, counts, strict=True)
        ]
        states = self._feed(rows, known)
        hidden = states[mx.arange(len(rows)), mx.array([max(n - 1, 0) for n in known])][:, None]
        first = draw_drafts(self._first(hidden), self.head.vocabulary, self._vocabulary, rows, 0)
        return self._deepened(rows, counts, hidden, first)

    def _compute_forks(self, rows: Sequence[Row], count: int) -> Computed:
        """Feed the new pairs of the first row, then draft on from several first drafts."""
        state = self._state(rows[0])
        hidden = self._feed(rows[:1], [len(rows[0].ids) - 1 - state.fed])[:, -1:]
        tokens = rank_drafts(
            self._first(hidden), self.head.vocabulary, self._vocabulary, rows[0], len(rows)
        )
        if count > 1:
            self._share(rows)
        hidden = mx.repeat(hidden, len(rows), axis=0)
        return self._deepened(rows, [count] * len(rows), hidden, Drawn(tokens, [None] * len(rows)))

    def _share(self, rows: Sequence[Row]) -> None:
        """Copy to the slots of the others what they lack of the first row's pairs."""
        fed = self._state(rows[0]).fed
        states = [(row.place, self._state(row)) for row in rows[1:]]
        for start in {state.fed for _, state in states} - {fed}:
            slots = [place for place, state in states if state.fed == start]
            self.caches.copy(rows[0].place, slots, start, fed)
        for _, state in states:
            state.fed = fed

    def _first(self, hidden: mx.array) -> mx.array:
        """Logits of each row's first draft."""
        return self.head.at(0).logits(hidden[:, 0])

    def _deepened(
        self, rows: Sequence[Row], counts: Sequence[int], hidden: mx.array, first: Drawn
    ) -> Computed:
        """Draft on from the first drafts: the head is fed its own states and drafts."""
        columns = self.head.vocabulary
        steps = [first]
        for depth in range(1, max(counts)):
            head = self.head.at(depth)
            starts = [len(row.ids) - 2 + depth for row in rows]
            cache = self.caches.begin(Span(rows[0].place, starts, [1] * len(rows)))
            fed = mx.maximum(steps[-1].tokens, 0)[:, None]  # -1 marks a draft that failed
            hidden = head.recur(hidden, fed, cache)
            logits = head.logits(hidden[:, 0])
            steps.append(draw_drafts(logits, columns, self._vocabulary, rows, depth))
        tokens = mx.stack([step.tokens for step in steps], axis=1)
        self._start(tokens)
        return Computed(tokens, _by_row([step.logprobs for step in steps], counts), columns)

    def _start(self, *arrays: mx.array) -> None:
        """Have the head's work begin; what cannot be computed fails here, before the target's."""
        lasts = [state.last for state in self._states.values() if state.last is not None]
        mx.async_eval(*arrays, self.caches.arrays, lasts)

    def _feed(self, rows: Sequence[Row], counts: Sequence[int]) -> mx.array:
        """Run the head over each row's next `counts` pairs; its states, (rows, widest, hidden)."""
        span = Span(rows[0].place, [self._state(row).fed for row in rows], counts)
        tokens, features = [], []
        for row, count in zip(rows, counts, strict=True):
            state = self._state(row)
            end = state.fed + count
            ids = row.ids[state.fed + 1 : end + 1]
            tokens.append(ids + [0] * (span.width - count))
            features.append(_between(state.seen, state.fed, end))
            state.fed = end
            state.seen = [(s, piece) for s, piece in state.seen if s + piece.shape[1] > end]
        padded, cache = _padded(features, span.width), self.caches.begin(span)
        if self.head.stages == 1:
            return self.head.feed(padded, mx.array(tokens), cache)
        return self._feed_stages(rows, counts, padded, mx.array(tokens), cache)

    def _feed_stages(
        self,
        rows: Sequence[Row],
        counts: Sequence[int],
        features: mx.array,
        tokens: mx.array,
        cache: list[Any],
    ) -> mx.array:
        """Feed a head that goes on from its own states, and keep the last of each row."""
        known = [self._state(row).last for row in rows]
        like = next((last for last in known if last is not None), None)
        before = None
        if like is not None:
            empty = mx.zeros_like(like)
            before = mx.concatenate([empty if last is None else last for last in known])
        states = self.head.feed_after(features, tokens, cache, before)
        for r, (row, count) in enumerate(zip(rows, counts, strict=True)):
            if count:
                self._state(row).last = states[r : r + 1, count - 1 : count]
        return states


def _between(seen: Sequence[tuple[int, mx.array]], start: int, end: int) -> mx.array | None:
    """The states of positions `start` to `end`; a later piece replaces what it overlaps."""
    parts = []
    for i, (first, piece) in enumerate(seen):
        last = min(first + piece.shape[1], seen[i + 1][0] if i + 1 < len(seen) else end, end)
        a, b = max(first, start), last
        if a < b:
            parts.append(piece[:, a - first : b - first])
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)


def _padded(parts: Sequence[mx.array | None], width: int) -> mx.array:
    """Stack rows, zeros on the right of the shorter ones."""
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    like = next(part for part in parts if part is not None)
    rows = []
    for part in parts:
        missing = width - (0 if part is None else part.shape[1])
        gap = mx.zeros((1, missing, like.shape[2]), like.dtype)
        rows.append(gap if part is None else mx.concatenate([part, gap], axis=1))
    return mx.concatenate(rows)


def _by_row(
    steps: Sequence[Sequence[mx.array | None]], counts: Sequence[int]
) -> list[mx.array | None]:
    """From log-probabilities by step and row to one array a row, shape (drafts, columns)."""
    by_row: list[mx.array | None] = []
    for r, count in enumerate(counts):
        drawn = [step[r] for step in steps[:count]]
        arrays = [array for array in drawn if array is not None]
        by_row.append(mx.stack(arrays) if arrays else None)
    return by_row
