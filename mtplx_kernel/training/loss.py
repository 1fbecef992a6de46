"""The loss of a head, and its gradient in closed form.

For a draft distribution q and the base's p, over the columns of the draft vocabulary, with m the
sum of p there (p is normalised over the whole vocabulary):

* KL = sum p log(p / q), whose gradient by q's logits is m q - p;
* alpha = sum min(p, q), the chance that verification accepts a draft, whose gradient by q's logits
  is q ([q < p] - s), s the sum of q where q < p.

The loss is KL at first, later c KL + (1 - c)(1 - alpha) with c = exp(-alpha), alpha averaged over
the batch. That alpha is the one of decoding at a temperature T that the training aims at: of p and
q both raised to 1 / T and normalised anew (whose gradient has a factor 1 / T), so that the head
that is perfect at one T is perfect at all, and one that is not favours the likely tokens the more,
the lower T is. The gradient by the head's states is then one product with the output rows, so that
no array of the size of the logits is kept for a backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtplx_kernel.heads.distilled import draft_logits


@dataclass(frozen=True, slots=True)
class Slope:
    """The loss at one depth, seen from the head's states.

    Attributes
    ----------
    gradient
        By the states, of their shape, for the mean over the weighted positions.
    alpha
        Mean chance of acceptance at the temperature aimed at, a number.
    """

    gradient: mx.array
    alpha: mx.array


def slope(
    rows: Mapping[str, Any],
    states: mx.array,
    taught: mx.array,
    mass: mx.array,
    weights: mx.array,
    late: mx.array,
    aim: float = 1.0,
) -> Slope:
    """Gradient of the loss by states.

    Parameters
    ----------
    rows
        The dense rows of the output head that draft.
    states
        Shape (n, hidden).
    taught, mass
        p, shape (n, columns), and its sums, shape (n,).
    weights
        0 or 1 for each position, float32, shape (n,).
    late
        Whether acceptance is part of the loss, a boolean.
    aim
        Temperature of the decoding whose acceptance that is, above 0.
    """
    logits = draft_logits(rows, states)
    q = mx.softmax(logits, axis=-1, precise=True)
    share = weights / mx.maximum(weights.sum(), 1.0)
    aimed, wanted = q, taught
    if aim != 1.0:
        aimed = mx.softmax(logits * (1 / aim), axis=-1, precise=True)
        wanted = sharpened(taught, mass, aim)
    smaller = mx.where(aimed < wanted, aimed, 0)
    s = total(smaller)[:, None]
    alpha = (total(mx.minimum(aimed, wanted)) * share).sum()
    c = mx.where(late, mx.exp(-alpha), 1.0)
    by_logits = c * (mass[:, None] * q - taught) - (1 - c) / aim * (smaller - s * aimed)
    by_states = by_logits.astype(states.dtype) @ rows["weight"]
    return Slope(by_states.astype(mx.float32) * share[:, None], alpha)


def divergence(
    rows: Mapping[str, Any], states: mx.array, taught: mx.array, weights: mx.array
) -> mx.array:
    """Mean KL over weighted positions, p and q both normalised over the columns; for reports."""
    logits = draft_logits(rows, states).astype(mx.float32)
    log_q = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    p = taught.astype(mx.float32)
    mass = mx.maximum(p.sum(-1), 1e-9)
    kl = (p * (mx.log(mx.maximum(p, 1e-30)) - log_q)).sum(-1) / mass - mx.log(mass)
    return (kl * weights).sum() / mx.maximum(weights.sum(), 1.0)


def teach(rows: Mapping[str, Any], final: mx.array, normaliser: mx.array) -> mx.array:
    """The base's probabilities of the drafted ids, from its states: shape (n, columns).

    Parameters
    ----------
    rows
        The dense rows of the output head that draft.
    final
        States after the final norm, shape (n, hidden).
    normaliser
        Of the base's whole vocabulary, shape (n,).
    """
    return likely(draft_logits(rows, final), normaliser)


def likely(logits: mx.array, normaliser: mx.array) -> mx.array:
    """Probabilities from logits, shape (n, columns), and the normaliser of all, shape (n,)."""
    p = mx.exp(logits.astype(mx.float32) - normaliser[:, None])
    return mx.minimum(p, 1.0).astype(logits.dtype)


def sharpened(p: mx.array, mass: mx.array, temperature: float) -> mx.array:
    """P at a temperature, shape (n, columns); what lies outside the columns counts as one token."""
    power = 1 / temperature
    # From the largest on, so that no power of 16-bit numbers vanishes where all are small.
    scale = mx.maximum(p.max(-1).astype(mx.float32), 1e-9)[:, None]
    raised = ((p.astype(mx.float32) / scale) ** power).astype(p.dtype)
    outside = (mx.maximum(1 - mass, 0)[:, None] / scale) ** power
    return (raised / (total(raised)[:, None] + outside)).astype(p.dtype)


def total(x: mx.array) -> mx.array:
    """Sums of rows, float32, shape (n,): as a product, which adds 16-bit numbers in 32 bits."""
    return (x @ mx.ones((x.shape[-1], 1), x.dtype))[:, 0].astype(mx.float32)
