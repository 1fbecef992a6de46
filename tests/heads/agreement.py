"""A head against its formula: true pairs, then two deeper steps, on the caches of the engine."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.heads.native import NativeHead
from tests.heads.published import HIDDEN, VOCABULARY, Published

Array = NDArray[np.float64]
Tokens = NDArray[np.int64]
Pass = Callable[[Array, Array], Array]
LENGTH = 11


def prompt(length: int = LENGTH, seed: int = 7) -> tuple[Array, Tokens]:
    """States of shape (length, hidden) and the tokens after them."""
    random = np.random.default_rng(seed)
    return random.standard_normal((length, HIDDEN)), random.integers(0, VOCABULARY, length)


def feed(head: NativeHead, states: Array, tokens: Tokens, caches: SlotCaches) -> mx.array:
    """Run one row's true pairs from the start."""
    layers = caches.begin(Span(0, [0], [len(tokens)]))
    features = mx.array(states[None].astype(np.float32))
    return head.feed(features, mx.array(tokens[None]), layers)


def assert_follows(
    head: NativeHead,
    embedding: Array,
    states: Pass,
    logits: Callable[[Array], Array],
    tolerance: float = 2e-4,
) -> None:
    """Compare with the formula.

    Parameters
    ----------
    states
        From target states (length, hidden) and embeddings to the head's own states.
    logits
        From the head's own states to draft logits.
    """
    features, tokens = prompt()
    caches = SlotCaches(head)
    own = feed(head, features, tokens, caches)
    expected = states(features, embedding[tokens])
    _close(own[0], expected, tolerance)
    _close(head.logits(own)[0], logits(expected), tolerance)
    for depth in range(2):
        token = int(np.argmax(logits(expected)[-1]))
        features = np.concatenate([features, expected[-1:]])
        tokens = np.append(tokens, token)
        layers = caches.begin(Span(0, [LENGTH + depth], [1]))
        own = head.recur(own[:, -1:], mx.array([[token]]), layers)
        expected = states(features, embedding[tokens])
        _close(own[0], expected[-1:], tolerance)
        _close(head.logits(own)[0], logits(expected[-1:]), tolerance)


def _close(found: mx.array, expected: Array, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert np.abs(expected).max() > 0.5, "an oracle of zeros would prove nothing"
    np.testing.assert_allclose(np.array(found), expected, rtol=tolerance, atol=tolerance)


def parts(published: Published, embedding: str, output: str) -> tuple[Array, Array]:
    """The target's embedding and output matrices in float64."""
    tensors = published.base
    return tensors[embedding].astype(np.float64), tensors[output].astype(np.float64)
