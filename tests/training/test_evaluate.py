"""The judge: walks by hand, and drafts that are what decoding would draft."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.training.base import Base
from mtplx_kernel.training.evaluate import Answers, answer, evaluate, matches, score
from mtplx_kernel.training.heldout import HeldOut
from mtplx_kernel.training.roles import Roles

PROMPTS = (
    HeldOut("a", "chat", "Hello there"),
    HeldOut("b", "facts", "Why is the sea salty, and the rain not?"),
)


def test_a_walk_by_hand() -> None:
    # An answer of 8 tokens at positions 3 to 10; chains are named by their pair, from 2 on.
    match = np.zeros((10, 2), bool)
    match[2] = [True, False]  # one draft and the model's own token: 5 is known
    match[4] = [True, True]  # two drafts and one: 8 is known
    match[7] = [False, True]  # 9 is known; the second draft does not count
    match[8] = [True, True]  # one token is left: 10
    scores = score([(match, 3, 11)], 2)
    # One draft a cycle: 3 -> 5 -> 7 -> 8 -> 9 (pair 6 is wrong: 3 5 7 8 9 10).
    assert scores.tokens_a_cycle[1] == pytest.approx(7 / 4)
    assert scores.acceptance == (pytest.approx(3 / 4), pytest.approx(1 / 2))
    assert scores.tokens_a_cycle[0] == pytest.approx(7 / 5)


def test_nothing_right_is_one_token_a_cycle() -> None:
    scores = score([(np.zeros((10, 3), bool), 2, 9)], 3)
    assert scores.acceptance == (0.0, 0.0, 0.0)
    assert scores.tokens_a_cycle == (1.0, 1.0, 1.0)


def test_everything_right_is_all_drafts_and_one() -> None:
    scores = score([(np.ones((60, 3), bool), 1, 2 + 12)], 3)
    assert scores.acceptance == (1.0, 1.0, 1.0)
    assert scores.tokens_a_cycle == (2.0, 3.0, 4.0)


def test_matches_are_what_decoding_drafts(base: Base, head: DistilledHead) -> None:
    tokens = mx.random.randint(0, 200, (1, 14), key=mx.random.key(5))
    answers = Answers(tokens, [3], [14], ["chat"], 0, 0.0, None)
    states = base.target.features(base.target.forward(tokens, None))
    columns, wrong = 150, 0
    # A text that agrees with the drafts of one chain, so that matches are not all false.
    for start in (2, 6):
        cache = head.make_cache()
        now = head.feed(states[:, : start + 1], tokens[:, 1 : start + 2], cache)[:, -1:]
        drafts = []
        for _ in range(3):
            drafts.append(head.vocabulary[mx.argmax(head.logits(now, columns), axis=-1)])
            now = head.recur(now, drafts[-1], cache)
        ids = [int(d.item()) for d in drafts]
        agreed = tokens.tolist()[0][: start + 2] + ids
        text = mx.array([agreed])
        found = matches(
            base, head, Answers(text, [3], [len(agreed)], ["chat"], 0, 0.0, None), columns, 3
        )
        assert found[0, start].tolist() == [True, True, True]
        # A judge that is off by one pair would see these instead.
        wrong += int(found[0, start - 1].all())
    assert wrong == 0
    assert matches(base, head, answers, columns, 3).shape == (1, 13, 3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_from_the_models_own_logits_is_always_right(
    base: Base,
    head: DistilledHead,
    roles: Roles,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the target's law in the head's place, the coupled noise must choose the same tokens."""
    every = mx.arange(base.target.vocabulary, dtype=mx.int32)
    whole = DistilledHead(head.config, base.target.shared, every)
    answers = answer(base, roles, every, temperature, prompts=PROMPTS, longest=12, seed=2)
    final = base.target.forward(answers.tokens, None)
    monkeypatch.setattr(
        "mtplx_kernel.training.evaluate.unroll",
        lambda head, features, embedded, depth: [final[:, 1:]],
    )
    found = matches(base, whole, answers, base.target.vocabulary, 1)
    for row, (start, stop) in enumerate(zip(answers.starts, answers.stops, strict=True)):
        # The token after an answer's first is the first that a draft is about.
        assert found[row, start - 1 : stop - 2, 0].all()
    assert len(answers.starts) + answers.looping == 2


def test_scores_by_domain(base: Base, head: DistilledHead, roles: Roles) -> None:
    answers = answer(base, roles, head.vocabulary, 0.8, prompts=PROMPTS, longest=20)
    found = evaluate(base, head, answers, 100, depth=2)
    assert found.answers + found.looping == 2
    for name, scores in found.domains.items():
        assert name in {"chat", "facts"}
        assert len(scores.acceptance) == len(scores.tokens_a_cycle) == 2


def test_judging_stops_where_it_is_asked_to(base: Base, head: DistilledHead, roles: Roles) -> None:
    steps: list[int] = []

    def stages(total: int, what: str, unit: str) -> AbstractContextManager[Callable[[int], object]]:
        assert (what, unit) == ("judging at temperature 0.0", "step")
        return nullcontext(steps.append)

    with pytest.raises(KeyboardInterrupt):
        answer(
            base,
            roles,
            head.vocabulary,
            0.0,
            prompts=PROMPTS,
            stopped=lambda: len(steps) == 2,
            stages=stages,
        )
    assert steps == [1, 1]
