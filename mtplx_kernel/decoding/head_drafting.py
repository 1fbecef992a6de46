"""Drafts from an MTP head: fed with the target's own states, then with its own guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.depth import FLAT, PROBE_EVERY, Choice, CostCurve, Ladder, best_depth
from mtplx_kernel.decoding.draft_sampling import Drawn, draw_drafts
from mtplx_kernel.decoding.drafting import Computed, Drafts
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.heads.base import Head

FIRST_PRIOR = 0.65
"""How often a draft is believed to be right before any was tried."""
LONG_DECAY = 0.998
FEED_AT = 16
"""Known pairs that a row may collect before the head is fed with them, drafts or not."""


@dataclass(frozen=True, slots=True)
class HeadCost:
    """What the head's forwards cost, in plain decodes of the target.

    Attributes
    ----------
    first
        The pass over a cycle's new pairs, and its draft.
    step
        Each further draft.
    """

    first: float = 0.0
    step: float = 0.0

    def of(self, depth: int) -> float:
        """What `depth` drafts cost."""
        return self.first + (depth - 1) * self.step if depth else 0.0


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
    curve
        What a verify costs.
    cost
        What the head costs.
    """

    name = "head"

    def __init__(
        self,
        head: Head,
        caches: SlotCaches,
        vocabulary: int,
        curve: CostCurve = FLAT,
        cost: HeadCost | None = None,
    ) -> None:
        self.head = head
        self.caches = caches
        self._vocabulary = vocabulary
        self._curve = curve
        self._cost = cost or HeadCost()
        self._states: dict[str, _State] = {}
        self._ladder = Ladder(LONG_DECAY)

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """Keep the states until the tokens after them are known."""
        for r, (row, start) in enumerate(zip(rows, starts, strict=True)):
            if row.drafting:
                piece = features if len(rows) == 1 else features[r : r + 1]
                self._state(row).seen.append((start, piece))

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Feed the known pairs of rows that have collected many."""
        for row in rows:
            state = self._states.get(row.request_id)
            if state is None or not state.seen:
                continue
            start, piece = state.seen[-1]
            # The last known pair is kept back: its output is what the first draft comes from.
            piled = min(len(row.ids) - 1, start + piece.shape[1]) - 1 - state.fed
            if piled >= FEED_AT:
                self._feed([row], [piled])
                self._start()

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Plan drafts for each row."""
        counts = [choice.depth for choice in self.plan(rows, depths)]
        return self.drafts(rows, counts)

    def drafts(self, rows: Sequence[Row], counts: list[int]) -> Drafts:
        """Drafts of these depths, to be computed."""
        if not any(counts):
            return Drafts.none(len(rows))
        known: list[list[int] | None] = [None if count else [] for count in counts]
        return Drafts(counts, known, lambda: self._compute(rows, counts))

    def plan(self, rows: Sequence[Row], depths: Sequence[int]) -> list[Choice]:
        """The depth of each row that promises most."""
        return [self._choose(row, depth) for row, depth in zip(rows, depths, strict=True)]

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
            self.caches.clear(row.slot)

    def _choose(self, row: Row, most: int) -> Choice:
        state = self._state(row)
        if not most or not state.seen:
            return Choice(0, 0.0)
        if self.head.stages > 1:
            most = min(most, self.head.stages)
        rates = state.ladder.given(self._ladder.given([FIRST_PRIOR]))
        pending = len(row.ids) - row.committed
        least = 0 if row.params.depth is None else most
        choice = best_depth(
            self._curve, rates, most, pending=pending, drafting=self._cost.of, least=least
        )
        due = len(row.ids) - state.judged_at >= PROBE_EVERY
        return Choice(1, choice.value) if due and not choice.depth else choice

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
        columns = self.head.vocabulary
        steps: list[Drawn] = []
        for depth in range(max(counts)):
            head = self.head.at(depth)
            if depth:
                span = Span(
                    rows[0].slot, [len(row.ids) - 2 + depth for row in rows], [1] * len(rows)
                )
                cache = self.caches.begin(span)
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
        span = Span(rows[0].slot, [self._state(row).fed for row in rows], counts)
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
