"""A head's passes over whole rows at once: every position is the start of a chain of drafts."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from mtplx_kernel.heads.distilled import DistilledHead

HIDDEN_SCORE = -1e9


def unroll(
    head: DistilledHead,
    features: mx.array,
    embedded: Callable[[int, mx.array | None], mx.array],
    depth: int,
) -> list[mx.array]:
    """Run chains from all pairs of rows, as inference would one by one.

    In inference the deeper passes of a chain attend the true pairs up to its start, and what the
    chain itself has added; so here a pass at depth d attends the first pass's keys causally, and
    the keys of depths 2 to d of the own chain only. A pass at depth d stands d - 1 positions later.

    Parameters
    ----------
    head
        The head.
    features
        The target's states of each pair, shape (rows, pairs, states).
    embedded
        Given a depth, from 1, and the states of the depth before, the embeddings of the tokens
        that each chain is fed there, shape (rows, pairs, hidden).
    depth
        How many passes.

    Returns
    -------
    list of mx.array
        The head's states at each depth, shape (rows, pairs, hidden).
    """
    attention = head.self_attn
    pairs = features.shape[1]
    causal = mx.tril(mx.ones((pairs, pairs), dtype=mx.bool_))
    hidden = head.fused(features)
    states: list[mx.array] = []
    first: tuple[mx.array, mx.array] | None = None
    own: list[tuple[mx.array, mx.array]] = []
    for d in range(1, depth + 1):
        tokens = embedded(d, states[-1] if states else None)
        x = head.joined(hidden, tokens)
        queries, keys, values = attention.project(head.input_layernorm(x), d - 1)
        if first is None:
            first = keys, values
        else:
            own.append((keys, values))
        x = x + attention.merge(_attend(queries, first, own, causal, attention.scale))
        hidden = head.finished(x)
        states.append(hidden)
    return states


def _attend(
    queries: mx.array,
    first: tuple[mx.array, mx.array],
    own: list[tuple[mx.array, mx.array]],
    causal: mx.array,
    scale: float,
) -> mx.array:
    """Softmax over the first pass's keys up to the own one, and the chain's own deeper keys."""
    rows, heads, pairs, dim = queries.shape
    keys, values = first
    shared = keys.shape[1]
    dtype = queries.dtype
    grouped = queries.astype(mx.float32).reshape(rows, shared, -1, pairs, dim) * scale
    flat = grouped.reshape(rows, shared, -1, dim)
    scores = (flat @ keys.astype(mx.float32).swapaxes(-1, -2)).reshape(
        rows, shared, -1, pairs, pairs
    )
    scores = mx.where(causal, scores, HIDDEN_SCORE)
    extra = [(grouped * k[:, :, None].astype(mx.float32)).sum(-1, keepdims=True) for k, _ in own]
    most = mx.max(scores, axis=-1, keepdims=True)
    for score in extra:
        most = mx.maximum(most, score)
    most = mx.stop_gradient(most)
    weights = mx.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    mixed = weights.astype(dtype).reshape(rows, shared, -1, pairs) @ values
    mixed = mixed.reshape(rows, shared, -1, pairs, dim).astype(mx.float32)
    for score, (_, value) in zip(extra, own, strict=True):
        weight = mx.exp(score - most)
        total = total + weight
        mixed = mixed + weight * value[:, :, None].astype(mx.float32)
    return (mixed / total).astype(dtype).reshape(rows, heads, pairs, dim)
