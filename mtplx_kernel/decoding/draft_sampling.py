"""Draft tokens from a head's logits: greedy, or drawn as the row's acceptance rule needs it.

Under the coupled rule a draft is drawn with the very noise that the target's token at its position
will be drawn with, so the two agree as often as their distributions let them. Under the others its
noise must be independent of the test that accepts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx_kernel.decoding.acceptance import draft_noise
from mtplx_kernel.decoding.params import Acceptance
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.sampling import COLDEST, Draw, adjusted, finite, noise, shaped


@dataclass(frozen=True, slots=True)
class Drawn:
    """One draft of each row.

    Attributes
    ----------
    tokens
        int32, shape (rows,); -1 where the logits are not finite.
    logprobs
        For each row the normalised log-probabilities it was drawn from, shape (columns,), where the
        acceptance rule asks for them.
    """

    tokens: mx.array
    logprobs: list[mx.array | None]


def draw_drafts(
    logits: mx.array, columns: mx.array | None, vocabulary: int, rows: Sequence[Row], depth: int
) -> Drawn:
    """Draw the draft at `depth` (0 is the first) of each row.

    Parameters
    ----------
    logits
        float32, shape (rows, columns).
    columns
        Ids of the columns; None where column n is id n.
    vocabulary
        How many ids there are.
    """
    if all(row.drawn.greedy and not _adjusts(row, depth) for row in rows):
        chosen = mx.argmax(logits, axis=-1)
        logprobs: list[mx.array | None] = [None] * len(rows)
    else:
        drawn = [
            _draw_row(logits[r : r + 1], columns, vocabulary, row, depth)
            for r, row in enumerate(rows)
        ]
        chosen = mx.concatenate([token for token, _ in drawn])
        logprobs = [q for _, q in drawn]
    tokens = chosen if columns is None else columns[chosen]
    return Drawn(mx.where(finite(logits), tokens.astype(mx.int32), mx.array(-1)), logprobs)


def rank_drafts(
    logits: mx.array, columns: mx.array | None, vocabulary: int, row: Row, count: int
) -> mx.array:
    """Several first drafts of one row: the one it has alone, then those that are likeliest instead.

    Parameters
    ----------
    logits
        float32, shape (1, columns).
    count
        How many, at least 2.

    Returns
    -------
    mx.array
        int32, shape (count,), all different; -1 where the logits are not finite.
    """
    alone, _ = _draw_row(logits, columns, vocabulary, row, 0)
    scores = _adjusted(logits, columns, vocabulary, row, 0)[0]
    if not row.drawn.greedy:
        # Without the filters: what they rule out for the head they may leave to the target.
        gumbel = noise(row.seed, len(row.ids), vocabulary)
        scores = scores / max(row.drawn.temperature, COLDEST)
        scores = scores + (gumbel if columns is None else gumbel[columns])
    scores = mx.where(mx.arange(scores.size) == alone, -mx.inf, scores)
    others = mx.argpartition(-scores, kth=count - 2)[: count - 1]
    chosen = mx.concatenate([alone, others[mx.argsort(-scores[others])]])
    tokens = chosen if columns is None else columns[chosen]
    return mx.where(finite(logits), tokens.astype(mx.int32), mx.array(-1))


def _draw_row(
    logits: mx.array, columns: mx.array | None, vocabulary: int, row: Row, depth: int
) -> tuple[mx.array, mx.array | None]:
    """A row's draft as a column, shape (1,), and what it was drawn from."""
    position = len(row.ids) + depth
    logits = _adjusted(logits, columns, vocabulary, row, depth)
    if row.drawn.greedy:
        return mx.argmax(logits, axis=-1), None
    scores = shaped(logits, row.drawn)
    coupled = row.params.acceptance is Acceptance.COUPLED
    if coupled:
        gumbel = noise(row.seed, position, vocabulary)
        return mx.argmax(scores + (gumbel if columns is None else gumbel[columns]), axis=-1), None
    gumbel = draft_noise(row.seed, len(row.ids), depth, logits.shape[-1])
    return mx.argmax(scores + gumbel, axis=-1), (
        scores - mx.logsumexp(scores, axis=-1, keepdims=True)
    )[0]


def _adjusted(
    logits: mx.array, columns: mx.array | None, vocabulary: int, row: Row, depth: int
) -> mx.array:
    """A row's logits after its bias and penalties, by column."""
    if not _adjusts(row, depth):
        return logits
    # The drafts before this one are not known here: leaving them out costs acceptance only.
    allowed = None if row.constraint is None or depth else row.constraint.allowed(())
    whole = _widened(logits, columns, vocabulary)
    d = Draw(row.params, row.seed, len(row.ids) + depth, row.ids, 1, allowed)
    whole = adjusted(whole, d)
    return whole if columns is None else whole[:, columns]


def _adjusts(row: Row, depth: int) -> bool:
    """Whether a row's logits are changed; what it may say is known before the first draft only."""
    return row.params.adjusts or (row.constraint is not None and not depth)


def _widened(logits: mx.array, columns: mx.array | None, vocabulary: int) -> mx.array:
    """Draft logits as logits of all ids, minus infinity where there is no column."""
    if columns is None:
        return logits
    whole = mx.full((logits.shape[0], vocabulary), -mx.inf)
    whole[:, columns] = logits
    return whole
