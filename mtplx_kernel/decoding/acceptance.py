"""Acceptance rules that hold a sampled draft against the target by chance.

`rejection` judges the drafts one by one: a draft x from q is kept with probability
min(1, p(x) / q(x)); at the first that is not, the token is drawn from norm(max(p - q, 0)), and
after a full accept from p (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
arXiv:2302.01318). `block` judges them together and keeps more of them on average: Algorithm 2 of
Sun et al. 2024, arXiv:2403.10444. With w_0 = 1 and w_i = min(w_{i-1} p(x_i) / q(x_i), 1), the
longest prefix whose own test succeeds is kept; that of length i succeeds with probability
m_i / (m_i + 1 - w_i), where m_i = sum over x of max(w_i p(x) - q(x), 0) after that prefix (w_n for
the whole), and the token after it is drawn from norm(max(w_i p - q, 0)).

In both, p = 0 stays 0 and the law of the output is exactly the target's, whatever q is, if

- each draft was drawn from its q with `draft_noise`, which nothing else uses;
- the number of drafts and the choice of q depend on the text and the drafts before only: a draft
  that was drawn is verified, never dropped for what it is.

Which tokens come out does depend on the drafter and the depth, unlike with coupled sampling.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import mlx.core as mx

from mtplx_kernel.decoding.sampling import noise

REJECTION = "rejection"
BLOCK = "block"
FAILED = -1
"""In place of a token whose logits are not finite."""
LARGEST = 1e30
"""Ratio p / q beyond which it makes no difference."""


@dataclass(frozen=True, slots=True)
class Chances:
    """What a rule does with one row's n drafts, before any noise. Arrays, not yet evaluated.

    Attributes
    ----------
    rule
        "rejection" or "block".
    tests
        Shape (n,): the probability with which each draft's test succeeds, independently.
    target
        Shape (n + 1, vocabulary): p after the pending tokens and after each draft.
    draft
        Shape (n, vocabulary): the q of each draft.
    share
        Shape (n + 1,): the w of each position, how much of p is left to it.
    """

    rule: str
    tests: mx.array
    target: mx.array
    draft: mx.array
    share: mx.array

    def accepted(self, succeeded: mx.array) -> mx.array:
        """How many drafts are kept, given which tests succeeded: bool (n,) to int32 scalar."""
        if succeeded.size == 0:
            return mx.array(0, mx.int32)
        if self.rule == REJECTION:
            return mx.sum(mx.cumprod(succeeded.astype(mx.int32))).astype(mx.int32)
        lengths = mx.arange(1, succeeded.size + 1, dtype=mx.int32)
        return mx.max(mx.where(succeeded, lengths, 0))

    def residual(self, accepted: mx.array) -> mx.array:
        """What the token after the kept drafts is drawn from: weights (vocabulary,), any sum."""
        p, last = self.target[accepted], self.draft.shape[0] - 1
        if last < 0:
            return p
        # Behind the last draft nothing was drafted: q is 0 there.
        q = mx.where(accepted <= last, self.draft[mx.minimum(accepted, last)], 0)
        left = mx.maximum(self.share[accepted] * p - q, 0)
        # Nothing is left only where p = q, and there no draft is refused but by rounding.
        return mx.where(mx.any(left > 0), left, p)


def chances(
    rule: str,
    target: mx.array,
    draft_ids: mx.array,
    draft: mx.array | None,
    columns: mx.array | None,
) -> Chances:
    """The probabilities of a rule's decisions.

    As `verify`, with probabilities p, shape (n + 1, vocabulary), and q, shape (n, c), in place of
    their logarithms.
    """
    if rule not in (REJECTION, BLOCK):
        raise ValueError(f"rule must be {REJECTION!r} or {BLOCK!r}, not {rule!r}")
    count = draft_ids.shape[0]
    q = _spread(draft_ids, draft, columns, target)
    shares = [mx.ones((1,), dtype=target.dtype)] * (count + 1)
    # Without a bound, q next to 0 would make the ratio infinite, and 0 times that no number.
    ratios = mx.minimum(_at(target[:count], draft_ids) / _at(q, draft_ids), LARGEST)
    if rule == REJECTION or count == 0:
        return Chances(rule, mx.minimum(ratios, 1), target, q, mx.concatenate(shares))
    for i in range(count):
        shares[i + 1] = mx.minimum(shares[i] * ratios[i], 1)
    share = mx.concatenate(shares)
    within = share[1:-1]
    left = mx.sum(mx.maximum(within[:, None] * target[1:-1] - q[1:], 0), axis=-1)
    whole = left + (1 - within)
    # 0 / 0 is p = q behind an unbroken prefix, where the next draft is kept whatever it is.
    tests = mx.where(whole > 0, left / whole, 1)
    return Chances(rule, mx.concatenate([tests, share[-1:]]), target, q, share)


def verify(
    rule: str,
    target_logprobs: mx.array,
    draft_ids: mx.array,
    draft_logprobs: mx.array | None,
    columns: mx.array | None,
    seed: int,
    position: int,
) -> tuple[mx.array, mx.array]:
    """Judge one row's drafts and draw the token after those that are kept.

    Without drafts this is the draw of coupled sampling, same noise and all: mode ar gives the same
    tokens under every rule.

    Parameters
    ----------
    rule
        "rejection" or "block".
    target_logprobs
        Shape (n + 1, vocabulary): log p after the pending tokens and after each draft, with
        penalties, filters and temperature applied; need not be normalised.
    draft_ids
        int32, shape (n,), n >= 0.
    draft_logprobs
        Shape (n, c): log q that each draft was drawn from; need not be normalised. None where the
        drafts were not drawn at all: q is then 1 at the draft. So it is taken to be in a row that
        is not finite, or that rules its draft out.
    columns
        int32, shape (c,): the distinct ids that q is over, all others have q = 0. None where c is
        the vocabulary.
    seed
        The row's.
    position
        Absolute position of the first draft: where the cycle starts.

    Returns
    -------
    tuple of mx.array
        How many drafts are kept and the token after them, int32 scalars, not yet evaluated. 0 and
        -1 where one of the target's rows is not finite.

    Raises
    ------
    ValueError
        For another rule.
    """
    target = mx.softmax(target_logprobs, axis=-1)
    draft = None if draft_logprobs is None else mx.softmax(draft_logprobs, axis=-1)
    law = chances(rule, target, draft_ids, draft, columns)
    count, size = draft_ids.shape[0], target_logprobs.shape[-1]
    if count == 0:
        gumbel = noise(seed, position, size)
    else:
        gumbel = mx.random.gumbel((size,), key=_key(b"token", seed, position))
    uniforms = mx.random.uniform(shape=(count,), key=_key(b"accept", seed, position))
    accepted = law.accepted(uniforms < law.tests)
    token = mx.argmax(mx.log(law.residual(accepted)) + gumbel).astype(mx.int32)
    sound = mx.all(mx.isfinite(mx.sum(target, axis=-1)))
    return mx.where(sound, accepted, 0), mx.where(sound, token, FAILED)


def draft_noise(seed: int, position: int, offset: int, size: int) -> mx.array:
    """Gumbel noise to draw a draft with, for the rules of this module: argmax(log q + noise).

    It is apart from all noise of the verification, since these rules are exact only where a draft
    says nothing about the test that it will be put to, nor about the token that may replace it.
    And it is new in each cycle, which no two of a row start at the same position: `block` judges
    drafts by those after them, so that the noise of a dropped draft is spent as well.

    Parameters
    ----------
    seed
        The row's.
    position
        Absolute position of the cycle's first draft.
    offset
        Which draft of the cycle: 0 for the first.
    size
        How many ids q is over.

    Returns
    -------
    mx.array
        float32, shape (size,).
    """
    return mx.random.gumbel((size,), key=_key(b"draft", seed, position, offset))


def _key(purpose: bytes, seed: int, position: int, offset: int = 0) -> mx.array:
    packed = struct.pack("<QQQ", seed, position, offset)
    digest = hashlib.blake2b(packed, digest_size=8, person=purpose).digest()
    return mx.array(struct.unpack("<II", digest), dtype=mx.uint32)


def _at(rows: mx.array, ids: mx.array) -> mx.array:
    """Each row's value at its id."""
    return mx.take_along_axis(rows, ids[:, None], axis=-1)[:, 0]


def _spread(
    ids: mx.array, draft: mx.array | None, columns: mx.array | None, target: mx.array
) -> mx.array:
    """The q of each draft over the target's vocabulary."""
    nowhere = mx.zeros((ids.shape[0], target.shape[-1]), dtype=target.dtype)
    at = ids[:, None]
    if draft is None or draft.size == 0:
        return mx.put_along_axis(nowhere, at, mx.array(1, target.dtype), axis=-1)
    if columns is not None:
        reduced, draft = draft, nowhere
        draft[:, columns] = reduced
    share = mx.take_along_axis(draft, at, axis=-1)
    drawn = share > 0  # False for NaN as well
    kept = mx.where(drawn, draft, mx.array(0, target.dtype))
    return mx.put_along_axis(kept, at, mx.where(drawn, share, mx.array(1, target.dtype)), axis=-1)
