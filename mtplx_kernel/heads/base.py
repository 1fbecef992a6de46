"""An MTP head: a small network that guesses the tokens after the next from the target's states.

Pair i of a row is (states of the target at position i, token i + 1). A head is fed every pair of a
row, in order, as the tokens become known; what it makes of the last known pair predicts the token
after it. Deeper guesses feed the head its own output and its own guess. Heads change the speed
only: every guess is verified by the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn

Tap = int | Literal["final"]
"""Where the target is read: after the layer of that index (-1 is the last, before the final norm),
or after the final norm."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What a head may borrow from its target: nothing of it is the head's own parameter.

    Attributes
    ----------
    embed
        Embeddings, shape (..., hidden), of ids of shape (...).
    logits
        The target's own float32 logits, shape (n, vocabulary), of states after the final norm, of
        shape (n, hidden).
    output
        The module that projects to logits: a (quantised) linear layer or a tied embedding.
    """

    embed: Callable[[mx.array], mx.array]
    logits: Callable[[mx.array], mx.array]
    output: nn.Module


class Head(nn.Module):
    """What drafting asks of a head. The first pass over true pairs is `feed`, later ones `recur`.

    Attributes
    ----------
    family
        What kind it is, such as "qwen3_next" or "distilled".
    taps
        Which states of the target a pair holds, concatenated along the last axis in this order.
    vocabulary
        Ids of the columns of `logits`, int32 of shape (columns,); None where column n is id n.
        Ids left out are never drafted.
    stages
        How many drafts it can give one after the other, each with layers of its own; 1 where the
        same layers give as many as are asked for.
    """

    family: str
    taps: tuple[Tap, ...]
    vocabulary: mx.array | None
    stages: int = 1

    def make_cache(self) -> list[Any]:
        """One mlx-lm cache for each attention layer of the head, in layer order."""
        raise NotImplementedError

    def feed(self, features: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Run over true pairs.

        Parameters
        ----------
        features
            The target's states at the taps, shape (rows, width, states).
        tokens
            The token after each, shape (rows, width).
        cache
            One entry a layer.

        Returns
        -------
        mx.array
            The head's own states, shape (rows, width, hidden): what `recur` and `logits` take.
        """
        raise NotImplementedError

    def feed_after(
        self, features: mx.array, tokens: mx.array, cache: list[Any], before: mx.array | None
    ) -> mx.array:
        """As `feed`, for heads of several stages, which go on from their own states.

        Parameters
        ----------
        before
            The head's states of the pair before each row's first, shape (rows, 1, hidden); None
            where the rows begin here.
        """
        return self.feed(features, tokens, cache)

    def at(self, depth: int) -> Head:
        """What drafts at a depth, 0 being the first: its `recur` and `logits` are to be used."""
        return self

    def recur(self, hidden: mx.array, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Run one step deeper, over the head's own states and the tokens that they led to.

        Parameters
        ----------
        hidden
            What `feed` or `recur` returned, shape (rows, width, hidden).
        tokens
            Shape (rows, width).

        Returns
        -------
        mx.array
            Shape (rows, width, hidden).
        """
        raise NotImplementedError

    def logits(self, hidden: mx.array) -> mx.array:
        """Draft logits, float32 of shape (..., columns), from states of shape (..., hidden)."""
        raise NotImplementedError
