"""Heads that follow one another: the first drafts one token, the second the next, and so on.

Head s reads the state of head s - 1 at position i and token i + s + 1. Its cache holds that pair at
i + s, so that all heads are fed the same tokens at the same places, each with the states that the
one before it made a place earlier. A head's first s places hold no pair, and are hidden.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mtplx_kernel.heads.base import Head, Shared
from mtplx_kernel.heads.native import Config, Family, NativeHead, Weights


class ChainedHead(Head):
    """Several heads of one checkpoint. Its states are those of all of them, side by side.

    Parameters
    ----------
    heads
        In order; head s as `staged` changes its family.
    """

    vocabulary = None

    def __init__(self, heads: Sequence[NativeHead]) -> None:
        super().__init__()
        self.heads = list(heads)
        self.stages = len(self.heads)
        self.family, self.taps = heads[0].family, heads[0].taps

    def make_cache(self) -> list[Any]:
        """One mlx-lm cache for each head."""
        return [cache for head in self.heads for cache in head.make_cache()]

    def feed(self, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Run over true pairs from the first on; see `Head.feed`."""
        return self.feed_after(features, tokens, cache, None)

    def feed_after(
        self, features: mx.array, tokens: mx.array, cache: list[Any], before: mx.array | None
    ) -> mx.array:
        """Run over true pairs; see `Head.feed_after`."""
        made = [self.heads[0].feed(features, tokens, cache[:1])]
        for stage in range(1, self.stages):
            last = made[-1]
            first = mx.zeros_like(last[:, :1]) if before is None else self._part(before, stage - 1)
            moved = mx.concatenate([first, last[:, :-1]], axis=1)
            made.append(self.heads[stage].feed(moved, tokens, cache[stage : stage + 1]))
        return mx.concatenate(made, axis=-1)

    def recur(self, hidden: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Run the second draft's step; see `at`."""
        return self.recur_at(1, hidden, tokens, cache)

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits of the first draft; see `at`."""
        return self.logits_at(0, hidden)

    def at(self, depth: int) -> Head:
        """The chain as it drafts at a depth: head `depth`, and those after it for what follows."""
        return _Stage(self, depth)

    def recur_at(
        self, depth: int, hidden: mx.array, tokens: mx.array, cache: list[Any]
    ) -> mx.array:
        """One place further, shape (rows, 1, …): states of the heads from `depth` on are new."""
        made = [self._part(hidden, stage) for stage in range(depth)]
        for stage in range(depth, self.stages):
            state = self._part(hidden, stage - 1)
            made.append(self.heads[stage].feed(state, tokens, cache[stage : stage + 1]))
        return mx.concatenate(made, axis=-1)

    def logits_at(self, depth: int, hidden: mx.array) -> mx.array:
        """Draft logits of head `depth`."""
        return self.heads[depth].logits(self._part(hidden, depth))

    def _part(self, states: mx.array, stage: int) -> mx.array:
        size = states.shape[-1] // self.stages
        return states[..., stage * size : (stage + 1) * size]


class _Stage(Head):
    def __init__(self, chain: ChainedHead, depth: int) -> None:
        super().__init__()
        self._chain, self._depth = chain, depth

    def recur(self, hidden: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        return self._chain.recur_at(self._depth, hidden, tokens, cache)

    def logits(self, hidden: mx.array) -> mx.array:
        return self._chain.logits_at(self._depth, hidden)


def build(
    family: Family, config: Config, hidden: int, shared: Shared, weights: Weights, vocabulary: int
) -> NativeHead | ChainedHead:
    """The head, or the chain of heads, whose parameters `weights` names.

    Parameters
    ----------
    weights
        Those of a chain begin with `heads.S.`; head S is layer S after the model's last.
    """
    stages = {int(name.split(".")[1]) for name in weights if name.startswith("heads.")}

    def one(family: Family, config: Config, at: str = "") -> NativeHead:
        return NativeHead(
            family,
            config,
            hidden,
            shared,
            own_embed=f"{at}embed.weight" in weights,
            own_output=f"{at}output.weight" in weights,
            vocabulary=vocabulary,
        )

    if not stages:
        return one(family, config)
    layers = int(config["num_hidden_layers"])
    return ChainedHead(
        [
            one(staged(family, n), {**config, "num_hidden_layers": layers + n}, f"heads.{n}.")
            for n in range(max(stages) + 1)
        ]
    )


def staged(family: Family, stage: int) -> Family:
    """The family with the first `stage` places hidden from its layers."""
    if not stage:
        return family
    return dataclasses.replace(
        family, mask=lambda y, c: without_first(family.mask(y, c), y.shape[1], c, stage)
    )


def without_first(mask: Any, width: int, cache: Any, hidden: int) -> Any:
    """A mask that hides the first places of every row; those themselves see one place only.

    Parameters
    ----------
    mask
        As for attention: None, "causal", or true where a key is seen.
    width
        How many places the forward brings.
    cache
        One of the engine's.
    hidden
        How many places.
    """
    alone = isinstance(cache.offset, int)
    end = cache.offset + width if alone else None
    if isinstance(mask, mx.array):
        count = mask.shape[-1]
    else:  # one row that sees all that is shown to it
        assert end is not None
        count = end if mask is not None or cache.window is None else min(end, cache.window)
    first = end - count if end is not None else 0
    if first >= hidden:
        return mask
    keys = mx.arange(first, first + count)
    places = mx.array(cache.offset).reshape(-1, 1) + mx.arange(width)
    seen = keys >= mx.minimum(places, hidden)[..., None]
    if not isinstance(mask, mx.array):
        mask = keys <= places[0][:, None]
    return mask & (seen[0] if alone else seen[:, None])
