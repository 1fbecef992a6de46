"""What is trained is what runs: chains over whole rows equal feeding and recurring."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mtplx_kernel.caching.ragged import RaggedKVCache
from mtplx_kernel.caching.span import Span
from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.training.base import Base
from mtplx_kernel.training.unroll import unroll

PAIRS, DEPTH = 9, 3
TOKENS = mx.random.randint(0, 256, (2, PAIRS + DEPTH), key=mx.random.key(3))


def features(base: Base) -> mx.array:
    return base.target.features(base.target.forward(TOKENS, None))


def trained(base: Base, head: DistilledHead) -> list[mx.array]:
    embedded = base.target.shared.embed(TOKENS)
    return unroll(head, features(base)[:, :PAIRS], lambda d, _: embedded[:, d : d + PAIRS], DEPTH)


def chain(base: Base, head: DistilledHead, start: int, stock: bool) -> list[mx.array]:
    """The states of both rows' chains from one pair, as decoding computes them."""
    ragged = RaggedKVCache(2)
    cache = head.make_cache() if stock else [ragged]
    ragged.begin(Span(0, [0, 0], [start + 1, start + 1]))
    states = head.feed(features(base)[:, : start + 1], TOKENS[:, 1 : start + 2], cache)[:, -1:]
    found = [states[:, 0]]
    for d in range(2, DEPTH + 1):
        ragged.begin(Span(0, [start + d - 1] * 2, [1, 1]))
        states = head.recur(states, TOKENS[:, start + d : start + d + 1], cache)
        found.append(states[:, 0])
    return found


@pytest.mark.parametrize("stock", [True, False])
def test_training_sees_what_inference_computes(
    base: Base, head: DistilledHead, stock: bool
) -> None:
    states = trained(base, head)
    for start in (0, 4, PAIRS - 1):
        for d, found in enumerate(chain(base, head, start, stock)):
            expected = head.logits(states[d][:, start])
            assert mx.allclose(head.logits(found), expected, rtol=1e-4, atol=1e-5)


def test_the_comparison_would_see_a_shifted_position(base: Base, head: DistilledHead) -> None:
    states = trained(base, head)
    found = chain(base, head, 4, stock=True)
    for d in range(DEPTH):
        assert not mx.allclose(found[d], states[d][:, 5], rtol=1e-2, atol=1e-2)
