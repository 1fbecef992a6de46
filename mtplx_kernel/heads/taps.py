"""Reading a target's states between its layers, without a change to the model's code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mtplx_kernel.heads.base import Tap

UNTAPPED = "_untapped"
"""Where a tapped layer's class notes the class that it stands for."""


class Taps:
    """Keeps what chosen layers return during a forward.

    A model has one set of taps: these replace those that were made before on the same layers.

    Parameters
    ----------
    inner
        The inner model, with its layers in `layers`.
    taps
        Which states to keep; "final" is what the inner model returns.

    Raises
    ------
    ValueError
        If there is no such layer.
    """

    def __init__(self, inner: Any, taps: Sequence[Tap]) -> None:
        self.taps = tuple(taps)
        self._taken: dict[int, mx.array] = {}
        layers = getattr(inner, "layers", [])
        watched: dict[int, list[int]] = {}
        for tap in self.taps:
            if tap == "final":
                continue
            if not -len(layers) <= tap < len(layers):
                raise ValueError(f"the model has {len(layers)} layers, the head reads layer {tap}")
            watched.setdefault(tap % len(layers), []).append(tap)
        for index, layer in enumerate(layers):
            _let_go(layer)
            if index in watched:
                _watch(layer, self._taken, watched[index])

    def take(self, final: mx.array) -> mx.array:
        """The states of the last forward, side by side, given what the inner model returned."""
        if self.taps == ("final",):
            return final
        states = [final if tap == "final" else self._taken[tap] for tap in self.taps]
        self._taken.clear()
        return mx.concatenate(states, axis=-1)


def _let_go(layer: Any) -> None:
    """Give a layer that was watched its own class back."""
    layer_class = getattr(type(layer), UNTAPPED, None)
    if layer_class is not None:
        layer.__class__ = layer_class


def _watch(layer: Any, taken: dict[int, mx.array], taps: Sequence[int]) -> None:
    """Give one layer a class of its own that keeps what it returns; its parameters' names stay."""
    kind = type(layer)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        output = kind.__call__(self, *args, **options)
        for tap in taps:
            taken[tap] = output[0] if isinstance(output, tuple) else output
        return output

    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call, UNTAPPED: kind})
