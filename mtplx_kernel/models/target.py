"""A model split where decoding needs it: hidden states of all tokens, logits of chosen ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Shared, Tap
from mtplx_kernel.heads.taps import Taps

PROBE = [[1, 0]]
INNER_NAMES = ("model", "backbone", "transformer")
OUTER_NAMES = ("language_model",)
EMBEDDING_NAMES = ("embed_tokens", "embeddings", "word_embeddings", "wte", "tok_embeddings")
NORM_NAMES = ("norm", "norm_f", "final_layernorm", "ln_f")

NO_STATES = "the model's hidden states cannot be told from its logits, as a head needs"


class Target:
    """The target model of a decode step.

    mlx-lm models turn tokens into logits in one call. Decoding needs the logits of a few positions
    only, and MTP heads need the hidden states, so the call is split: the inner model is run as it
    is, and the model's own code after it (output head, scaling, soft caps) is run on chosen rows by
    standing in for the inner model. Where a family does not split exactly, the whole call is used.

    Parameters
    ----------
    model
        An mlx-lm model.

    Attributes
    ----------
    vocabulary
        How many ids the logits cover.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        whole = _as_array(model(mx.array(PROBE)))
        self.vocabulary = whole.shape[-1]
        self._split = _find_split(model)
        self._taps: Taps | None = None
        if self._split is not None and not self._splits_exactly(whole):
            self._split = None

    @property
    def splits(self) -> bool:
        """Whether hidden states and logits can be had apart."""
        return self._split is not None

    @property
    def inner(self) -> Any:
        """The module that holds the layers.

        Raises
        ------
        ModelUnusable
            If the model does not split: its states cannot be read then.
        """
        if self._split is None:
            raise ModelUnusable(NO_STATES)
        return self._split[1]

    @property
    def final_norm(self) -> mx.array | None:
        """Weight of the norm before the output head, shape (hidden,); None where it is unknown."""
        name = _first(self.inner, NORM_NAMES)
        norm = getattr(self.inner, name) if name is not None else None
        return getattr(norm, "weight", None)

    @property
    def shared(self) -> Shared:
        """What a head borrows: the embedding and the output head."""
        if self._split is None:
            raise ModelUnusable(NO_STATES)
        return ends(self.model, self.logits)

    def tap(self, taps: Sequence[Tap]) -> None:
        """Keep the states at these places in every forward, for `features`."""
        self._taps = Taps(self.inner, taps)

    def features(self, hidden: mx.array) -> mx.array:
        """The tapped states of the last forward side by side, given what it returned.

        Returns
        -------
        mx.array
            Shape (rows, width, states).
        """
        return hidden if self._taps is None else self._taps.take(hidden)

    def forward(self, tokens: mx.array, cache: list[Any] | None) -> mx.array:
        """Run the layers over new tokens.

        Parameters
        ----------
        tokens
            Ids, shape (rows, width).
        cache
            One entry a layer; None for a forward without a past.

        Returns
        -------
        mx.array
            Hidden states, shape (rows, width, hidden); logits where the model does not split.
        """
        if self._split is None:
            return _as_array(self.model(tokens, cache=cache))
        return _as_array(self._split[1](tokens, cache=cache))

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits of chosen positions.

        Parameters
        ----------
        hidden
            Rows of what `forward` returned, shape (n, hidden).

        Returns
        -------
        mx.array
            float32, shape (n, vocabulary).
        """
        if self._split is None:
            return hidden.astype(mx.float32)
        outer, _, name = self._split
        logits = _as_array(type(outer).__call__(_StandIn(outer, name, hidden[None]), None))
        return logits[0].astype(mx.float32)

    def inspect(self, ids: Sequence[int], top: int) -> list[tuple[int, float]]:
        """The likeliest next ids with their log-probabilities, after a forward of its own."""
        hidden = self.forward(mx.array([list(ids)]), None)
        logits = self.logits(hidden[0, -1:])[0]
        logprobs = logits - mx.logsumexp(logits)
        best = mx.argsort(-logprobs)[:top]
        found: list[int] = best.tolist()  # type: ignore[assignment]
        values: list[float] = logprobs[best].tolist()  # type: ignore[assignment]
        return list(zip(found, values, strict=True))

    def _splits_exactly(self, whole: mx.array) -> bool:
        """Compare the split with the whole call on the probe."""
        try:
            split = self.logits(self.forward(mx.array(PROBE), None)[0])
            whole = whole[0].astype(mx.float32)
            return bool(mx.allclose(whole, split, rtol=1e-2, atol=1e-2, equal_nan=True))
        except (AttributeError, TypeError, ValueError, KeyError, IndexError):
            # A family whose code around the inner model wants more than ids and a cache.
            return False


def ends(model: Any, logits: Callable[[mx.array], mx.array]) -> Shared:
    """What a head borrows from a model: its embedding and its output head.

    Parameters
    ----------
    model
        An mlx-lm model. It is not run.
    logits
        Its logits of final states: see `Target.logits`.

    Raises
    ------
    ModelUnusable
        If no embedding is found.
    """
    split = _find_split(model)
    name = None if split is None else _first(split[1], EMBEDDING_NAMES)
    if split is None or name is None:
        raise ModelUnusable(f"no embedding was found; looked for {', '.join(EMBEDDING_NAMES)}")
    outer, inner, _ = split
    embedding = getattr(inner, name)
    projection = getattr(outer, "lm_head", None)
    output = projection if isinstance(projection, nn.Module) else embedding
    return Shared(embed=embedding, logits=logits, output=output)


class _StandIn:
    """Poses as the outer model, with hidden states in the inner model's place."""

    def __init__(self, outer: Any, name: str, hidden: mx.array) -> None:
        self._outer = outer
        self._name = name
        self._inner = _Known(getattr(outer, name), hidden)

    def __getattr__(self, attribute: str) -> Any:
        if attribute == self._name:
            return self._inner
        return getattr(self._outer, attribute)


class _Known:
    """Poses as the inner model, whose answer is known; its tensors stay reachable."""

    def __init__(self, inner: Any, hidden: mx.array) -> None:
        self._inner = inner
        self._hidden = hidden

    def __call__(self, *_: Any, **__: Any) -> mx.array:
        return self._hidden

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._inner, attribute)


def _find_split(model: Any) -> tuple[Any, Any, str] | None:
    outer = model
    while (nested := _first(outer, OUTER_NAMES)) is not None:
        outer = getattr(outer, nested)
    name = _first(outer, INNER_NAMES)
    return None if name is None else (outer, getattr(outer, name), name)


def _first(module: Any, names: tuple[str, ...]) -> str | None:
    return next((n for n in names if callable(getattr(module, n, None))), None)


def _as_array(output: Any) -> mx.array:
    if not isinstance(output, mx.array):
        raise TypeError(f"the model returned {type(output).__name__}, not an array")
    return output
