"""Whether a loaded model decodes several rows in one forward as it decodes each of them alone."""

from __future__ import annotations

import mlx.core as mx

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.models.target import Target

FIRST = (1, 5, 2, 7, 3, 6, 4)
SECOND = (6, 3, 8, 2)
LONG = 24
"""Padding that enters a recurrent state changes little of it at once: this much, everything."""
LEAST_COSINE = 0.995
"""Rounding alone, in 16 bits and with quantised weights, leaves far more."""


def why_not_batched(target: Target) -> str | None:
    """Try two rows of different lengths, one of which joins late and takes tokens back.

    Returns
    -------
    str or None
        Why the model's rows must be decoded one at a time; None where they need not.
    """
    first, second = ([i % target.vocabulary for i in ids] for ids in (FIRST, SECOND))
    wrong = [(3 * i + 1) % target.vocabulary for i in range(LONG)]
    try:
        batch = _Batch(target)
        batch.feed({0: first[:4]})
        batch.caches.resize(2, len(first))
        batch.feed({1: second[:2], 0: wrong}, whole={1})
        batch.feed({1: wrong, 0: first[4:6]}, whole={0})
        found = batch.feed({0: first[6:], 1: second[2:]})
        alone = [_Batch(target).feed({0: ids})[0] for ids in (first, second)]
        cosines = [_cosine(a, b) for a, b in zip(found, alone, strict=True)]
    except Exception as error:  # a family that was never run with several rows
        return f"its layers do not take several rows ({type(error).__name__}: {error})"
    if min(cosines) >= LEAST_COSINE:
        return None
    return "rows of different lengths do not give what each of them gives alone"


class _Batch:
    """Rows by slot, and how many tokens the caches hold of each."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.caches = SlotCaches(target.model)
        self._held: dict[int, int] = {}

    def feed(self, ids: dict[int, list[int]], whole: set[int] | None = None) -> list[mx.array]:
        """Feed all rows, and take back what is not `whole`; the logits of each row's last token."""
        slots = sorted(ids)
        counts = [len(ids[slot]) for slot in slots]
        span = Span(slots[0], [self._held.get(slot, 0) for slot in slots], counts)
        padded = mx.array([ids[slot] + [0] * (span.width - len(ids[slot])) for slot in slots])
        hidden = self._target.forward(padded, self.caches.begin(span))
        last = mx.stack([hidden[r, count - 1] for r, count in enumerate(counts)])
        logits = self._target.logits(last)
        mx.eval(logits, self.caches.arrays)
        right = [whole is None or slot in whole for slot in slots]
        self.caches.commit(right)
        for slot, count, kept in zip(slots, counts, right, strict=True):
            self._held[slot] = self._held.get(slot, 0) + (count if kept else 0)
        return list(logits)


def _cosine(a: mx.array, b: mx.array) -> float:
    product: float = (mx.sum(a * b) / (mx.linalg.norm(a) * mx.linalg.norm(b))).item()  # type: ignore[assignment]
    return product
