"""Heads made for tests: one that knows the truth, one that notes what it was fed."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from mtplx_kernel.heads.base import Head
from tests.tiny import VOCABULARY


class TrueHead(Head):
    """Drafts a row's true continuation, wrong at every `wrong_every`th position.

    Its cache holds what it was fed: the states as keys, the tokens as values. Its own state is
    (row, position), and it knows a row by the first token in its cache, so its drafts are right
    only if it was fed in the right places and its cache went where its row went.

    Parameters
    ----------
    truths
        Prompt and output of each row; no two have the same second token.
    """

    family = "true"
    taps = ("final",)
    vocabulary = None

    def __init__(self, truths: list[list[int]], wrong_every: int = 10**6) -> None:
        super().__init__()
        longest = max(len(t) for t in truths) + 40
        self._truths = mx.array([t + [0] * (longest - len(t)) for t in truths])
        self._wrong_every = wrong_every

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def feed(self, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        _, fed = cache[0].update_and_fetch(
            features[:, None], tokens[:, None, :, None].astype(mx.float32)
        )
        rows = mx.argmax(fed[:, 0, :1] == self._truths[:, 1], axis=-1)
        positions = cache[0].span.positions
        return mx.stack([mx.broadcast_to(rows, tokens.shape), positions], axis=-1)

    def recur(self, hidden: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        # What a position holds is known from its token: states of drafts are marked by 7.
        size = cache[0].keys.shape[-1]
        return self.feed(mx.full((*tokens.shape, size), 7.0), tokens, cache)

    def logits(self, hidden: mx.array) -> mx.array:
        rows, positions = hidden[..., 0], hidden[..., 1] + 2
        ids = self._truths[rows, positions]
        ids = mx.where(positions % self._wrong_every == 0, (ids + 1) % VOCABULARY, ids)
        return mx.where(mx.arange(VOCABULARY) == ids[..., None], 20.0, 0.0)


class FailingHead(TrueHead):
    """Fails in a chosen way once its row is `after` tokens long."""

    def __init__(self, truths: list[list[int]], fault: str, after: int) -> None:
        super().__init__(truths)
        self._fault, self._after = fault, after

    def feed(self, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        hidden = super().feed(features, tokens, cache)
        if self._fault == "raises" and max(cache[0].span.starts) >= self._after:
            raise ZeroDivisionError("no luck")
        return hidden

    def logits(self, hidden: mx.array) -> mx.array:
        logits = super().logits(hidden)
        late = hidden[..., 1:] >= self._after
        return mx.where(late, mx.array(mx.nan), logits) if self._fault == "nan" else logits
