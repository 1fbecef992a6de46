"""The gradient in closed form is the one that automatic differentiation finds."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.training.loss import divergence, sharpened, slope, teach

ROWS = {"weight": mx.random.normal((20, 8), key=mx.random.key(0))}
STATES = mx.random.normal((6, 8), key=mx.random.key(1))
FINAL = mx.random.normal((6, 8), key=mx.random.key(2))
WEIGHTS = mx.array([1.0, 0, 1, 1, 0, 1])
# More than the columns' own normaliser: a part of the probability lies outside of them.
NORMALISER = mx.logsumexp(FINAL @ ROWS["weight"].T, axis=-1) + 0.2


def plain_loss(states: mx.array, late: bool, aim: float) -> mx.array:
    p = teach(ROWS, FINAL, NORMALISER)
    q = mx.softmax(states @ ROWS["weight"].T, axis=-1)
    share = WEIGHTS / 4
    kl = ((p * mx.log(p / q)).sum(-1) * share).sum()
    sharp = p ** (1 / aim) / ((p ** (1 / aim)).sum(-1) + (1 - p.sum(-1)) ** (1 / aim))[:, None]
    drawn = mx.softmax(states @ ROWS["weight"].T / aim, axis=-1)
    alpha = (mx.minimum(sharp, drawn).sum(-1) * share).sum()
    c = mx.stop_gradient(mx.exp(-alpha)) if late else 1.0
    return c * kl + (1 - c) * (1 - alpha)


@pytest.mark.parametrize("aim", [1.0, 0.4])
@pytest.mark.parametrize("late", [False, True])
def test_gradient(late: bool, aim: float) -> None:
    taught = teach(ROWS, FINAL, NORMALISER)
    found = slope(ROWS, STATES, taught, taught.sum(-1), WEIGHTS, mx.array(late), aim)
    expected = mx.grad(lambda states: plain_loss(states, late, aim))(STATES)
    assert np.allclose(found.gradient, expected, atol=1e-5)
    assert mx.abs(expected).max() > 0.01


@pytest.mark.parametrize("aim", [1.0, 0.4, 0.01])
def test_a_perfect_head_is_perfect_at_every_temperature(aim: float) -> None:
    taught = teach(ROWS, FINAL, mx.logsumexp(FINAL @ ROWS["weight"].T, axis=-1))
    found = slope(ROWS, FINAL, taught, taught.sum(-1), WEIGHTS, mx.array(True), aim)
    assert found.alpha.item() == pytest.approx(1.0, abs=1e-4)


def test_sharpened_of_known_numbers() -> None:
    p = mx.array([[0.6, 0.2]])  # a token of 0.2 is outside
    found = sharpened(p, p.sum(-1), 0.5)
    assert np.allclose(found, [[0.36 / 0.44, 0.04 / 0.44]], atol=1e-6)


def test_alpha_and_divergence_of_a_perfect_head() -> None:
    taught = teach(ROWS, FINAL, mx.logsumexp(FINAL @ ROWS["weight"].T, axis=-1))
    found = slope(ROWS, FINAL, taught, taught.sum(-1), WEIGHTS, mx.array(False))
    assert found.alpha.item() == pytest.approx(1.0, abs=1e-5)
    assert divergence(ROWS, FINAL, taught, WEIGHTS).item() == pytest.approx(0.0, abs=1e-5)
    assert divergence(ROWS, STATES, taught, WEIGHTS).item() > 0.1
