"""Target tokens from logits: greedy, or drawn with noise that depends on seed and position alone.

The token at absolute position t of a request with seed s is ``argmax(log p_t + G(s, t))``, G being
Gumbel noise: by the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030) that is
a draw from p_t. Because G depends on (s, t) alone, the draw is the same whatever forward computed
p_t, so a draft is right iff it equals the draw, in every mode and at every depth.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from mtplx_kernel.decoding.params import SamplingParams

COLDEST = 1e-30
"""Colder, every log-probability overflows to minus infinity; the draw is greedy long before."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Neighbouring positions of one row to draw tokens for.

    Attributes
    ----------
    params, seed
        The row's options and the seed in force.
    position
        Absolute position of the first token to draw.
    tokens
        All tokens before the last position to draw for: the row's ids and its drafts.
    count
        How many positions.
    allowed
        Which ids may come at each position, bool of shape (count, vocabulary); None allows all.
    """

    params: SamplingParams
    seed: int
    position: int
    tokens: Sequence[int]
    count: int
    allowed: mx.array | None = None

    @property
    def plain(self) -> bool:
        """Whether the tokens are the argmax of the logits as they are."""
        return self.params.greedy and not self.params.adjusts and self.allowed is None


def noise(seed: int, position: int, size: int) -> mx.array:
    """Gumbel noise G(seed, position), float32 of shape (size,)."""
    packed = struct.pack("<QQ", seed, position)
    words = struct.unpack("<II", hashlib.blake2b(packed, digest_size=8).digest())
    return mx.random.gumbel((size,), key=mx.array(words, dtype=mx.uint32))


def draw(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Target tokens of several rows.

    Parameters
    ----------
    logits
        float32, shape (n, vocabulary): the rows' positions one after another.
    draws
        What to draw, n positions in all.

    Returns
    -------
    mx.array
        Ids, shape (n,), not yet evaluated; -1 where a position's logits are not finite.
    """
    if all(d.plain for d in draws):
        tokens = mx.argmax(logits, axis=-1)
    else:
        ends = [0]
        for d in draws:
            ends.append(ends[-1] + d.count)
        tokens = mx.concatenate(
            [_draw_row(logits[a:b], d) for a, b, d in zip(ends, ends[1:], draws, strict=False)]
        )
    return mx.where(finite(logits), tokens.astype(mx.int32), mx.array(-1, mx.int32))


def finite(logits: mx.array) -> mx.array:
    """Whether a distribution exists: no NaN, no positive infinity, not all ruled out."""
    return ~mx.isnan(mx.sum(logits, axis=-1)) & mx.isfinite(mx.max(logits, axis=-1))


def _draw_row(logits: mx.array, d: Draw) -> mx.array:
    logits = adjusted(logits, d)
    if d.params.greedy:
        return mx.argmax(logits, axis=-1)
    size = logits.shape[-1]
    gumbel = mx.stack([noise(d.seed, d.position + i, size) for i in range(d.count)])
    return mx.argmax(shaped(logits, d.params) + gumbel, axis=-1)


def shaped(logits: mx.array, params: SamplingParams) -> mx.array:
    """Log-probabilities after the filters and the temperature, unnormalised; -inf is ruled out.

    Parameters
    ----------
    logits
        Shape (n, vocabulary), bias and penalties already applied.
    params
        Options with a temperature above 0.
    """
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if params.top_p < 1.0:
        logprobs = apply_top_p(logprobs, params.top_p)
    if params.min_p > 0.0:
        logprobs = apply_min_p(logprobs, params.min_p)
    if 0 < params.top_k < logits.shape[-1]:
        logprobs = apply_top_k(logprobs, params.top_k)
    return logprobs * (1.0 / max(params.temperature, COLDEST))


def adjusted(logits: mx.array, d: Draw) -> mx.array:
    """Logits with what may not come ruled out, then the bias, then the penalties.

    The same array where there is nothing of that.
    """
    if d.allowed is not None:
        logits = mx.where(d.allowed, logits, -mx.inf)
    if d.params.logit_bias is not None:
        logits = biased(logits, d.params.logit_bias)
    return penalised(logits, d) if d.params.penalised else logits


def biased(logits: mx.array, bias: Mapping[int, float]) -> mx.array:
    """Logits with what some ids have added, shape (n, vocabulary)."""
    return logits.at[:, mx.array(list(bias))].add(mx.array(list(bias.values())))


def penalised(logits: mx.array, d: Draw) -> mx.array:
    """Logits after the penalties, position by position: each draft counts for those after it."""
    p = d.params
    processors: list[Any] = make_logits_processors(
        repetition_penalty=p.repetition_penalty if p.repetition_penalty != 1.0 else None,
        repetition_context_size=p.penalty_context,
        presence_penalty=p.presence_penalty,
        presence_context_size=p.penalty_context,
        frequency_penalty=p.frequency_penalty,
        frequency_context_size=p.penalty_context,
    )
    rows = []
    for i in range(d.count):
        end = len(d.tokens) - (d.count - 1 - i)
        recent = mx.array(list(d.tokens[max(0, end - p.penalty_context) : end]))
        row = logits[i : i + 1]
        for process in processors:
            row = process(recent, row)
        rows.append(row)
    return mx.concatenate(rows)
