"""Drafts from the request's own text: what followed the same words before may follow again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mtplx_kernel.decoding.budget import Offer, allot
from mtplx_kernel.decoding.depth import COMMON_WEIGHT, Costs, Rate
from mtplx_kernel.decoding.drafting import Drafts, Slotless
from mtplx_kernel.decoding.params import Acceptance
from mtplx_kernel.decoding.row import Row

LOOKUP = "lookup"
NGRAM_SIZES = (4, 3, 2)
PRIORS = {4: 0.45, 3: 0.35, 2: 0.25}
"""How often a guess is believed to be right before any was tried: fewer words say less."""
LONG_DECAY = 0.99
JUDGED = 8
"""Most tokens of a guess that are held against the text, drafted or not."""


@dataclass(frozen=True, slots=True)
class Source:
    """A place in some text that may be copied from.

    Attributes
    ----------
    offer
        How many tokens of it a row can have.
    ids
        The text.
    start
        Where the copy starts; past the end it goes on with its own beginning (a loop).
    by
        The name of what found it.
    """

    offer: Offer
    ids: Sequence[int]
    start: int
    by: str = LOOKUP

    def copy(self, count: int) -> list[int]:
        """Its next `count` tokens."""
        return continuation(self.ids, self.start, count)


class LookupDrafter(Slotless):
    """Guesses that the text repeats itself.

    Works for every model and costs no forward. Of the n-grams that the text ends with, the one
    whose continuation promises the most tokens a second is copied; a row whose request fixed its
    depth is given that many. Every guess is held against what came, drafted or not, so a size of
    n-gram that was bad and gets better is found without trying it.

    Parameters
    ----------
    costs
        What the parts of a cycle cost.
    """

    name = LOOKUP

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self._texts: dict[str, _Text] = {}
        self._rates = {n: Rate(LONG_DECAY, COMMON_WEIGHT) for n in NGRAM_SIZES}

    def see(self, rows: Sequence[Row], starts: Sequence[int], features: mx.array) -> None:
        """The text alone is read, not the target's states."""

    def catch_up(self, rows: Sequence[Row]) -> None:
        """The text is read when it is guessed from."""

    def propose(self, rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        """Guess from each row's own prompt and output."""
        return copied(self.costs, rows, self.sources(rows, depths))

    def sources(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[Source]]:
        """What may be copied for each row, from the longest n-gram to the shortest."""
        return [self._sources(row, most) for row, most in zip(rows, depths, strict=True)]

    def observe(self, row: Row, drafted: int, tokens: Sequence[int]) -> None:
        """Hold what each n-gram size would have guessed against what came."""
        text = self._text(row)
        text.extend(row.ids)
        for n, start in text.matches(row.ids):
            guess = continuation(row.ids, start, min(len(tokens), JUDGED))
            judge((text.rates[n], self._rates[n]), guess, tokens)

    def release(self, row: Row, *, wipe: bool = False) -> None:
        """Drop the row's n-grams."""
        self._texts.pop(row.request_id, None)

    def _sources(self, row: Row, most: int) -> list[Source]:
        text = self._text(row)
        text.extend(row.ids)
        if not most:
            return []
        return [
            Source(
                offer(row, most, text.rates[n].given(self._rates[n].given(PRIORS[n]))),
                row.ids,
                start,
            )
            for n, start in text.matches(row.ids)[: 1 if settled(row) else None]
        ]

    def _text(self, row: Row) -> _Text:
        return self._texts.setdefault(row.request_id, _Text())


def offer(row: Row, most: int, rate: float) -> Offer:
    """Copies for a row, each right with the same chance; all of them where it fixed its depth."""
    return Offer([rate], most, least=0 if row.params.depth is None else most)


def copied(costs: Costs, rows: Sequence[Row], sources: Sequence[Sequence[Source]]) -> Drafts:
    """Drafts from the sources that promise the most tokens a second."""
    pending = [len(row.ids) - row.committed for row in rows]
    shares = allot(costs, pending, [[source.offer for source in found] for found in sources])
    chosen = [
        None if share.offer is None else found[share.offer]
        for share, found in zip(shares, sources, strict=True)
    ]
    return Drafts.of(
        [
            [] if source is None else source.copy(share.count)
            for share, source in zip(shares, chosen, strict=True)
        ],
        [LOOKUP if source is None else source.by for source in chosen],
    )


def judge(rates: Sequence[Rate], guess: Sequence[int], tokens: Sequence[int]) -> None:
    """Hold a guess against the tokens that came."""
    right = _agreement(guess, tokens)
    for rate in rates:
        rate.observe(len(guess), right)


def settled(row: Row) -> bool:
    """Whether drafts must come from the same place every time.

    Under the rules that are not coupled the ids depend on the drafter; with a depth of its own such
    a request is repeatable only if no other request has a say in which one drafts.
    """
    params = row.params
    return params.depth is not None and params.acceptance is not Acceptance.COUPLED


@dataclass(slots=True)
class _Text:
    """Where each n-gram of one request was last followed by something, and what that was worth."""

    indexed: int = 0
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    rates: dict[int, Rate] = field(default_factory=lambda: {n: Rate() for n in NGRAM_SIZES})

    def extend(self, ids: Sequence[int]) -> None:
        """Index the n-grams that end before the last token: the last has no follower yet."""
        for end in range(max(self.indexed, 1), len(ids)):
            for n in NGRAM_SIZES:
                if end >= n:
                    self.after[tuple(ids[end - n : end])] = end
        self.indexed = len(ids)

    def matches(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """The sizes of which the text's last n-gram came before, and where it went on."""
        found = []
        for n in NGRAM_SIZES:
            start = self.after.get(tuple(ids[-n:])) if len(ids) >= n else None
            if start is not None:
                found.append((n, start))
        return found


def _agreement(guessed: Sequence[int], tokens: Sequence[int]) -> int:
    for i, (a, b) in enumerate(zip(guessed, tokens, strict=False)):
        if a != b:
            return i
    return min(len(guessed), len(tokens))


def continuation(ids: Sequence[int], start: int, depth: int) -> list[int]:
    """Copy `depth` tokens from `start`; past the end it goes on with its own beginning (a loop)."""
    guess: list[int] = []
    period = len(ids) - start
    for i in range(depth):
        guess.append(ids[start + i] if i < period else guess[i - period])
    return guess
