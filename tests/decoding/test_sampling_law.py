"""The law of the output is the target's, by enumeration; broken verifiers are caught by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, cast

import pytest

from mtplx_kernel.decoding.flight import Verdict, _agreement
from mtplx_kernel.decoding.outcome import emit
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep, Outcome
from tests.decoding.toy import Context, GuessDrafter, ToyStep, finish, toy_row, uneven

VOCABULARY, OUTCOMES, LENGTH = 3, 4, 4
END = 2
PROMPT: Context = (1, 1)
Sequences = dict[tuple[Context, str], Fraction]
"""The probability of each output and way to end."""


def table(context: Context) -> list[int]:
    """What each of the equally likely draws after a context gives."""
    return uneven(context, OUTCOMES, VOCABULARY)


def probability(context: Context, token: int) -> Fraction:
    return Fraction(table(context).count(token), OUTCOMES)


def exact_law(output: Context = (), so_far: Fraction = Fraction(1)) -> Sequences:
    """The product of the target's conditional probabilities, along every sequence."""
    if len(output) == LENGTH:
        return {(output, "length"): so_far}
    law: Sequences = {}
    for token in range(VOCABULARY):
        p = probability(PROMPT + output, token) * so_far
        if p == 0:
            continue
        if token == END:
            law[output, "stop"] = p
        else:
            law |= exact_law((*output, token), p)
    return law


class World:
    """One enumerated outcome: which of the equally likely draws each position takes."""

    def __init__(self) -> None:
        self.omega: tuple[int, ...] = (0,) * LENGTH

    def draw(self, context: Context, position: int) -> int:
        return table(context)[self.omega[(position - len(PROMPT)) % LENGTH]]

    def right(self, context: Context, depth: int) -> list[int]:
        """The target's own next tokens."""
        drafts: list[int] = []
        for _ in range(depth):
            here = context + tuple(drafts)
            drafts.append(self.draw(here, len(here)))
        return drafts

    def wrong(self, context: Context, depth: int) -> list[int]:
        return [(t + 1) % VOCABULARY for t in self.right(context, depth)]

    def second_wrong(self, context: Context, depth: int) -> list[int]:
        drafts = self.right(context, depth)
        drafts[1:2] = [(t + 1) % VOCABULARY for t in drafts[1:2]]
        return drafts

    def fixed(self, context: Context, depth: int) -> list[int]:
        return [1] * depth

    def likeliest(self, context: Context, depth: int) -> list[int]:
        drafts: list[int] = []
        for _ in range(depth):
            drafts.append(Counter(table(context + tuple(drafts))).most_common(1)[0][0])
        return drafts

    def by_chance(self, context: Context, depth: int) -> list[int]:
        """Another drafter's noise: of any length, whatever the target would say."""
        source = random.Random(f"{self.omega} {context}")
        return [source.randrange(VOCABULARY) for _ in range(source.randint(0, depth))]

    def same_noise(self, context: Context, depth: int) -> list[int]:
        """A drafter with a distribution of its own, drawn with the target's noise."""
        start = len(context) - len(PROMPT)
        return [(self.omega[(start + i) % LENGTH] + 1) % VOCABULARY for i in range(depth)]


DRAFTERS = ("right", "wrong", "second_wrong", "fixed", "likeliest", "by_chance", "same_noise")


def law(
    monkeypatch: pytest.MonkeyPatch,
    drafter: str,
    depth: int,
    recurrent: bool = False,
    make: Callable[[World], type[DecodeStep]] = lambda world: DecodeStep,
) -> Sequences:
    """The law of what the step puts out, over all outcomes."""
    world = World()
    toy = ToyStep(monkeypatch, world.draw, VOCABULARY)
    kind = make(world)
    counts: Counter[tuple[Context, str]] = Counter()
    for world.omega in product(range(OUTCOMES), repeat=LENGTH):
        step = toy.make(GuessDrafter(getattr(world, drafter)), kind, recurrent=recurrent)
        row = toy_row(PROMPT, end_ids=(END,), depth=depth, max_tokens=LENGTH)
        ended = finish(step, row).ended
        assert ended is not None
        counts[tuple(row.output), ended] += 1
    return {key: Fraction(n, OUTCOMES**LENGTH) for key, n in counts.items()}


def test_the_toy_is_worth_testing() -> None:
    """Its law sums to one, has many sequences of uneven probability, and depends on the past."""
    exact = exact_law()
    assert sum(exact.values()) == 1
    assert len(exact) >= 15
    assert len(set(exact.values())) >= 4
    assert {ended for _, ended in exact} == {"stop", "length"}
    assert len({tuple(table((*PROMPT, t))) for t in (0, 1)}) == 2


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_law_is_the_targets(monkeypatch: pytest.MonkeyPatch, drafter: str, depth: int) -> None:
    assert law(monkeypatch, drafter, depth) == exact_law()


@pytest.mark.parametrize("drafter", ["second_wrong", "by_chance", "same_noise"])
def test_the_law_is_the_targets_with_recurrent_replay(
    monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    assert law(monkeypatch, drafter, 2, recurrent=True) == exact_law()


Verifier = Callable[[World, Row, list[int], list[int]], list[int]]
"""From a row, its drafts and the target's tokens to the tokens that are kept."""


def verified_by(verifier: Verifier) -> Callable[[World], type[DecodeStep]]:
    """The real step with its accept rule replaced."""

    def make(world: World) -> type[DecodeStep]:
        class Variant(DecodeStep):
            def cycle(self, rows: Sequence[Row], *, again: bool = True) -> list[Outcome]:
                (row,) = rows
                flight = self._launch(rows, self._work(rows, self._propose(rows)))
                (drafts,), targets = flight.known, cast("list[int]", flight.flat.tolist())
                assert drafts is not None
                kept = verifier(world, row, drafts, targets)
                agreed = _agreement(drafts[: len(kept) - 1], kept)
                self._commit(flight, [Verdict(drafts, kept[: agreed + 1])])
                return [emit(row, Verdict(drafts, kept))]

        return Variant

    return make


def honest(world: World, row: Row, drafts: list[int], targets: list[int]) -> list[int]:
    return targets[: _agreement(drafts, targets) + 1]


def accepts_all(world: World, row: Row, drafts: list[int], targets: list[int]) -> list[int]:
    return [*drafts, targets[-1]]


def accepts_the_likely(world: World, row: Row, drafts: list[int], targets: list[int]) -> list[int]:
    kept: list[int] = []
    for draft, target in zip(drafts, targets, strict=False):
        likely = probability((*row.ids, *kept), draft) >= Fraction(1, 2)
        kept.append(draft if likely else target)
        if kept[-1] != draft:
            return kept
    return [*kept, targets[-1]]


def emits_the_draft(world: World, row: Row, drafts: list[int], targets: list[int]) -> list[int]:
    kept = honest(world, row, drafts, targets)
    at = len(kept) - 1
    return [*kept[:-1], drafts[at] if at < len(drafts) else kept[-1]]


def skips_the_correction(
    world: World, row: Row, drafts: list[int], targets: list[int]
) -> list[int]:
    """After a wrong draft, goes on with the target's token behind it."""
    agreed = _agreement(drafts, targets)
    return [*targets[:agreed], targets[min(agreed + 1, len(drafts))]]


def corrects_with_other_noise(
    world: World, row: Row, drafts: list[int], targets: list[int]
) -> list[int]:
    """Draws the correction with the noise of the next position, which is then used twice."""
    kept = honest(world, row, drafts, targets)
    if len(kept) > len(drafts):
        return kept
    context = (*row.ids, *kept[:-1])
    return [*kept[:-1], world.draw(context, len(context) + 1)]


def redraws_the_correction_until_it_differs(
    world: World, row: Row, drafts: list[int], targets: list[int]
) -> list[int]:
    """Takes the rule of rejection sampling, never the rejected token, where it has no place."""
    kept = honest(world, row, drafts, targets)
    at = len(kept) - 1
    if at == len(drafts):
        return kept
    context = (*row.ids, *kept[:-1])
    residual = [t for t in table(context) if t != drafts[at]]
    return [*kept[:-1], residual[world.omega[at] % len(residual)]]


def goes_on_after_an_end(
    world: World, row: Row, drafts: list[int], targets: list[int]
) -> list[int]:
    """Drops an end token inside the block and keeps what follows it."""
    kept = honest(world, row, drafts, targets)
    return [t for t in kept[:-1] if t != END] + kept[-1:]


BROKEN = (
    accepts_all,
    accepts_the_likely,
    emits_the_draft,
    skips_the_correction,
    corrects_with_other_noise,
    redraws_the_correction_until_it_differs,
    goes_on_after_an_end,
)


def wrong_laws(monkeypatch: pytest.MonkeyPatch, verifier: Verifier) -> list[str]:
    """The drafters under which a verifier's law is not the target's."""
    found = []
    for drafter in DRAFTERS:
        if law(monkeypatch, drafter, 2, make=verified_by(verifier)) != exact_law():
            found.append(drafter)
    return found


def test_the_variants_are_the_step_but_for_their_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_laws(monkeypatch, honest) == []


@pytest.mark.parametrize("verifier", BROKEN, ids=lambda v: v.__name__)
def test_broken_verifiers_are_caught(monkeypatch: pytest.MonkeyPatch, verifier: Any) -> None:
    assert {"second_wrong", "by_chance", "same_noise"} <= set(wrong_laws(monkeypatch, verifier))
