"""Taps: what layers return is kept, once, however often a model was tapped before."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mtplx_kernel.heads.base import Tap
from mtplx_kernel.heads.taps import Taps


class Doubling(nn.Module):
    """A layer that doubles; every second one returns a pair, as some families do."""

    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.weight = mx.array(2.0)
        self.pair = pair

    def __call__(self, x: mx.array) -> Any:
        y = x * self.weight
        return (y, None) if self.pair else y


class Inner(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [Doubling(pair=index == 1) for index in range(3)]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            y = layer(x)
            x = y[0] if isinstance(y, tuple) else y
        return x


def taken(inner: Inner, taps: Taps) -> list[float]:
    found: Any = taps.take(inner(mx.array([[[1.0]]]))).flatten().tolist()
    return list(found)


@pytest.mark.parametrize(
    ("taps", "states"),
    [
        ((0, 1, "final"), [2.0, 4.0, 8.0]),
        ((-1, "final", -3), [8.0, 8.0, 2.0]),
        ((1, -2, 1), [4.0, 4.0, 4.0]),
        (("final",), [8.0]),
    ],
)
def test_states_come_in_the_order_of_the_taps(taps: tuple[Tap, ...], states: list[float]) -> None:
    inner = Inner()
    assert taken(inner, Taps(inner, taps)) == states


def test_tapping_again_replaces_what_was_tapped() -> None:
    inner = Inner()
    names = [name for name, _ in inner.named_modules()]
    for _ in range(5):
        last = Taps(inner, (0, 1, "final"))
    assert [len(type(layer).__mro__) - len(Doubling.__mro__) for layer in inner.layers] == [1, 1, 0]
    assert taken(inner, last) == [2.0, 4.0, 8.0]
    assert taken(inner, Taps(inner, (2,))) == [8.0]
    assert [type(layer) is Doubling for layer in inner.layers] == [True, True, False]
    Taps(inner, ("final",))
    assert all(type(layer) is Doubling for layer in inner.layers)
    assert [name for name, _ in inner.named_modules()] == names


def test_a_layer_that_is_not_there() -> None:
    inner = Inner()
    Taps(inner, (1,))
    with pytest.raises(ValueError, match="the model has 3 layers, the head reads layer 3"):
        Taps(inner, (0, 3))
    assert type(inner.layers[0]) is Doubling
