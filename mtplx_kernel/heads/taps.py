"""Reading a target's states between its layers, without a change to the model's code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mtplx_kernel.heads.base import Tap


class Taps:
    """Keeps what chosen layers return during a forward.

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
        for tap in self.taps:
            if tap == "final":
                continue
            if not -len(layers) <= tap < len(layers):
                raise ValueError(f"the model has {len(layers)} layers, the head reads layer {tap}")
            _watch(layers[tap], self._taken, tap)

    def take(self, final: mx.array) -> mx.array:
        """The states of the last forward, side by side, given what the inner model returned."""
        if self.taps == ("final",):
            return final
        states = [final if tap == "final" else self._taken[tap] for tap in self.taps]
        self._taken.clear()
        return mx.concatenate(states, axis=-1)


def _watch(layer: Any, taken: dict[int, mx.array], tap: int) -> None:
    """Give one layer a class of its own that keeps what it returns; its parameters' names stay."""
    kind = type(layer)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        output = kind.__call__(self, *args, **options)
        taken[tap] = output[0] if isinstance(output, tuple) else output
        return output

    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call})
