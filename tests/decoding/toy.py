"""A toy target with exact distributions, and caches that remember what they were fed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.caching.slots import Move, SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.drafting import Drafts, Slotless
from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.sampling import Draw
from mtplx_kernel.decoding.step import DecodeStep, Outcome
from mtplx_kernel.decoding.text import TextStream
from tests.decoding.rows import Letters, start

Context = tuple[int, ...]
Choose = Callable[[Context, int], int]
"""From everything the model saw and an absolute position to the token drawn there."""


class ToyCaches(SlotCaches):
    """One list of fed tokens a slot, in place of keys and values or of a recurrent state."""

    rollback = True

    def __init__(self, slots: int = 1, recurrent: bool = False) -> None:
        self.slots = slots
        self.recurrent = recurrent
        self.held: list[Context] = [()] * slots
        self.seen: list[Context] = []
        self.span: Span | None = None

    def begin(self, span: Span) -> list[Any]:
        """Go back to where the rows start; a recurrent state has to be there already."""
        self.span = span
        for row, held in enumerate(span.starts):
            slot = span.first + row
            if held == 0:
                self.held[slot] = ()
            if self.recurrent:
                assert len(self.held[slot]) == held
            self.held[slot] = self.held[slot][:held]
            assert len(self.held[slot]) == held
        return [self]

    def feed(self, tokens: list[list[int]]) -> list[list[Context]]:
        """What each new token has seen, itself included."""
        assert self.span is not None
        held = self.held[self.span.slots]
        contexts = [
            [before + tuple(new[: i + 1]) for i in range(self.span.width)]
            for before, new in zip(held, tokens, strict=True)
        ]
        self.seen = [c[n - 1] for c, n in zip(contexts, self.span.counts, strict=True)]
        return contexts

    def commit(self, whole: list[bool]) -> None:
        """A recurrent state that saw a wrong draft is put back; keys and values stay."""
        assert self.span is not None
        for row, right in enumerate(whole):
            if right or not self.recurrent:
                self.held[self.span.first + row] = self.seen[row]

    def clear(self, slot: int, start: int = 0) -> None:
        self.held[slot] = self.held[slot][:start]

    def resize(self, slots: int, length: int) -> None:
        self.slots = slots
        self.held = (self.held + [()] * slots)[:slots]

    def move(self, moves: Sequence[Move]) -> None:
        before = list(self.held)
        for m in moves:
            self.held[m.slot] = before[m.source]

    def drop(self) -> None:
        self.held = [()] * self.slots

    @property
    def room(self) -> int:
        """No growth costs anything."""
        return 10**6

    @property
    def arrays(self) -> list[mx.array]:
        return []


class ToyTarget:
    """Its hidden state of a token, and its logits, are the number of the context it saw."""

    def __init__(self, vocabulary: int = 3) -> None:
        self.vocabulary = vocabulary
        self.contexts: list[Context] = []
        self.forwards = 0

    def forward(self, tokens: mx.array, cache: list[Any] | None) -> mx.array:
        assert cache is not None
        rows: Any = tokens.tolist()
        first = len(self.contexts)
        fed = cache[0].feed(rows)
        self.contexts += [context for row in fed for context in row]
        self.forwards += 1
        return mx.arange(first, len(self.contexts)).reshape(*tokens.shape, 1)

    def logits(self, hidden: mx.array) -> mx.array:
        return hidden

    def features(self, hidden: mx.array) -> mx.array:
        return hidden


class ToyStep:
    """Makes the real step draw from a toy target by a test's own rule."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, choose: Choose, vocabulary: int = 3
    ) -> None:
        self.target = ToyTarget(vocabulary)
        self.choose = choose
        monkeypatch.setattr("mtplx_kernel.decoding.flight.draw", self._draw)

    def _draw(self, logits: mx.array, draws: Sequence[Draw]) -> mx.array:
        numbers: Any = logits[:, 0].tolist()
        positions = [d.position + i for d in draws for i in range(d.count)]
        for d in draws:
            # A draw without penalties may come without the tokens before it.
            assert len(d.tokens) in (0, d.position + d.count - 1)
        drawn = [
            self.choose(self.target.contexts[number], position)
            for number, position in zip(numbers, positions, strict=True)
        ]
        return mx.array(drawn, dtype=mx.int32)

    def make(
        self,
        drafter: Any,
        kind: type[DecodeStep] = DecodeStep,
        slots: int = 1,
        recurrent: bool = False,
    ) -> DecodeStep:
        target: Any = self.target
        caches: Any = ToyCaches(slots, recurrent)
        return kind(target, caches, drafter)


class GuessDrafter(Slotless):
    """Drafts what a function of the row's ids and the depth says."""

    name = "guess"

    def __init__(self, guess: Callable[[Context, int], list[int]]) -> None:
        self._guess = guess
        self.observed: list[tuple[int, int]] = []

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """The text says it all."""

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        guesses = [self._guess(tuple(row.ids), k) for row, k in zip(rows, depths, strict=True)]
        return Drafts.of(guesses)

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        self.observed.append((drafted, len(tokens) - 1))

    def catch_up(self, rows: Sequence[Row]) -> None:
        """There is nothing to work off."""

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Nothing is kept."""


def toy_row(
    prompt: Context,
    end_ids: Sequence[int] = (),
    number: int = 0,
    context_length: int = 99,
    **options: Any,
) -> Row:
    params = SamplingParams(**{"max_tokens": 8, "mode": "mtp", "depth": 3, **options})
    return Row(
        request_id=f"toy-{number}",
        ids=list(prompt),
        params=params,
        seed=0,
        mode=params.mode or GenerationMode.MTP,
        end_ids=frozenset(end_ids),
        context_length=context_length,
        text=TextStream(Letters(), prompt, params.stop),
    )


def finish(step: DecodeStep, row: Row) -> Outcome:
    """Decode a row alone until it ends, and return its last cycle."""
    if row.slot is None:
        start(step, row, chunk=999)
    while True:
        (outcome,) = step.cycle([row])
        if outcome.ended is not None or outcome.error is not None:
            return outcome


def uneven(context: Context, outcomes: int, vocabulary: int) -> list[int]:
    """An uneven distribution: the token that each of some equally likely draws gives."""
    source = random.Random(repr(context))
    weights = [source.choice((1, 1, 2, 5)) for _ in range(vocabulary)]
    return source.choices(range(vocabulary), weights, k=outcomes)


def shares(key: object, size: int) -> Any:
    """Uneven probabilities in float64, some of them 0, that depend on a key."""
    source = random.Random(repr(key))
    weights = np.array([source.choice((0, 1, 2, 5, 9)) for _ in range(size)], dtype=np.float64)
    weights[source.randrange(size)] += 1
    return weights / weights.sum()
