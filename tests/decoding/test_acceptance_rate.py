"""How many drafts `rejection` and `block` keep, exactly: formulas, and the paper's example."""

from __future__ import annotations

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.decoding.acceptance import BLOCK, REJECTION, chances
from tests.decoding.test_acceptance_law import (
    DRAFTERS,
    EXACT,
    PROMPT,
    RULES,
    VOCABULARY,
    Drafter,
    judged,
    outcomes,
    target,
)
from tests.decoding.toy import Context


def expected(rule: str, drafter: Drafter, context: Context, depth: int) -> float:
    """How many drafts of a cycle are kept on average."""
    return sum(
        share * accepted * chance
        for drafts, share in drafter.draws(context, depth)
        for accepted, _, chance in outcomes(judged(rule, drafter, context, drafts), drafts)
    )


CONTEXTS = [PROMPT + c for n in range(2) for c in product(range(VOCABULARY), repeat=n)]


def spread(drafter: Drafter, context: Context) -> Any:
    """The q over the whole vocabulary."""
    q = np.zeros(VOCABULARY)
    q[list(drafter.columns or range(VOCABULARY))] = drafter.q(context)
    return q


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_one_draft_is_kept_as_often_as_p_and_q_overlap(drafter: str) -> None:
    d = DRAFTERS[drafter]
    for context in CONTEXTS:
        if d.goes_on(context):
            overlap = np.minimum(target(context), spread(d, context)).sum()
            for rule in RULES:
                assert expected(rule, d, context, 1) == pytest.approx(overlap, abs=EXACT)


@pytest.mark.parametrize("drafter", ["skewed", "near", "reduced", "certain"])
def test_kept_drafts_follow_the_formulas(drafter: str) -> None:
    """Rejection keeps a prefix with the product of min(p, q), block with q times w."""
    d = DRAFTERS[drafter]
    for context in CONTEXTS:
        one_by_one = together = 0.0
        for length in (1, 2, 3):
            for drafts, share in d.draws(context, length):
                befores = [context + drafts[:i] for i in range(length)]
                p = [target(b)[x] for b, x in zip(befores, drafts, strict=True)]
                q = [spread(d, b)[x] for b, x in zip(befores, drafts, strict=True)]
                w = 1.0
                for a, b in zip(p, q, strict=True):
                    w = min(w * a / b, 1.0)
                one_by_one += float(np.prod(np.minimum(p, q)))
                together += share * w
        assert expected(REJECTION, d, context, 3) == pytest.approx(one_by_one, abs=EXACT)
        assert expected(BLOCK, d, context, 3) == pytest.approx(together, abs=EXACT)


def test_block_keeps_at_least_as_many_and_sometimes_more() -> None:
    gains = {
        name: [expected(BLOCK, d, c, 3) - expected(REJECTION, d, c, 3) for c in CONTEXTS]
        for name, d in DRAFTERS.items()
    }
    assert min(min(values) for values in gains.values()) > -EXACT
    assert max(gains["skewed"]) > 0.05
    assert max(gains["near"]) > 0.02
    # A certain draft is never likelier to the drafter than to the target: nothing to make up for.
    assert max(gains["certain"]) < EXACT


def test_the_papers_example() -> None:
    """Sun et al. 2024: p = (1/3, 2/3), q = (2/3, 1/3), two drafts: 10/9 and 11/9 are kept."""
    p, q = np.array([1, 2]) / 3, np.array([2, 1]) / 3
    kept = {}
    for rule in RULES:
        kept[rule] = 0.0
        for drafts in product((0, 1), repeat=2):
            law = chances(
                rule,
                mx.array(np.array([p, p, p]), dtype=mx.float64),
                mx.array(drafts),
                mx.array(np.array([q, q]), dtype=mx.float64),
                None,
            )
            kept[rule] += sum(q[list(drafts)].prod() * a * c for a, _, c in outcomes(law, drafts))
    assert kept[REJECTION] == pytest.approx(10 / 9, abs=EXACT)
    assert kept[BLOCK] == pytest.approx(11 / 9, abs=EXACT)
