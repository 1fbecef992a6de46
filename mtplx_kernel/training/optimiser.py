"""Muon for matrices and AdamW for vectors, as functions over dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

Arrays = dict[str, mx.array]
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Of Muon's quintic iteration: https://kellerjordan.github.io/posts/muon/"""
ITERATIONS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates at their peak, and the rest of what both optimisers need."""

    matrices: float = 0.02
    vectors: float = 0.002
    momentum: float = 0.95
    decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 0.5


def fresh(parameters: Mapping[str, mx.array]) -> Arrays:
    """The state before the first step: a momentum each, and second moments of vectors."""
    state = {f"m.{name}": mx.zeros_like(a) for name, a in parameters.items()}
    state |= {f"v.{name}": mx.zeros_like(a) for name, a in parameters.items() if a.ndim < 2}
    return state | {"step": mx.array(0.0)}


def update(
    parameters: Arrays,
    gradients: Arrays,
    state: Arrays,
    heat: mx.array,
    rates: Rates,
    dtype: mx.Dtype,
) -> tuple[Arrays, Arrays]:
    """One step.

    Parameters
    ----------
    parameters, gradients, state
        By name, float32.
    heat
        What the learning rates are multiplied by, a number from 0 to 1.
    rates
        At their peak.
    dtype
        What the matrices' directions are computed in.

    Returns
    -------
    tuple
        The new parameters and state.
    """
    gradients = _clipped(gradients, rates.clip)
    step = state["step"] + 1
    made, kept = {}, {"step": step}
    directions: Arrays = {}
    for name, gradient in gradients.items():
        if gradient.ndim < 2:
            m = rates.beta1 * state[f"m.{name}"] + (1 - rates.beta1) * gradient
            v = rates.beta2 * state[f"v.{name}"] + (1 - rates.beta2) * mx.square(gradient)
            kept[f"v.{name}"] = v
            size = mx.sqrt(v / (1 - rates.beta2**step)) + 1e-8
            made[name] = parameters[name] - heat * rates.vectors * (
                m / (1 - rates.beta1**step) / size
            )
        else:
            m = rates.momentum * state[f"m.{name}"] + (1 - rates.momentum) * gradient
            directions[name] = gradient * (1 - rates.momentum) + m * rates.momentum
        kept[f"m.{name}"] = m
    for name, direction in orthogonal(directions, dtype).items():
        rows, columns = direction.shape
        rate = heat * rates.matrices
        # Tall matrices take larger steps, so that outputs of all shapes move alike.
        made[name] = parameters[name] * (1 - rate * rates.decay) - (
            rate * max(1.0, rows / columns) ** 0.5 * direction
        )
    return made, kept


def orthogonal(matrices: Arrays, dtype: mx.Dtype) -> Arrays:
    """Each matrix with its singular values near 1; those of one shape are computed together."""
    groups: dict[tuple[int, int], list[str]] = {}
    for name, matrix in matrices.items():
        shape = (min(matrix.shape), max(matrix.shape))
        groups.setdefault(shape, []).append(name)
    done: Arrays = {}
    for shape, names in groups.items():
        wide = [m if m.shape == shape else m.T for m in (matrices[n] for n in names)]
        found = _newton_schulz(mx.stack(wide), dtype)
        for n, name in enumerate(names):
            done[name] = found[n] if matrices[name].shape == shape else found[n].T
    return done


def _newton_schulz(x: mx.array, dtype: mx.Dtype) -> mx.array:
    a, b, c = NEWTON_SCHULZ
    size = mx.sqrt(mx.square(x).sum(axis=(1, 2), keepdims=True))
    y = (x / (size + 1e-7)).astype(dtype)
    for _ in range(ITERATIONS):
        square = y @ y.swapaxes(1, 2)
        y = a * y + (b * square + c * (square @ square)) @ y
    return y.astype(mx.float32)


def _clipped(gradients: Arrays, most: float) -> Arrays:
    total = mx.sqrt(sum((mx.square(g).sum() for g in gradients.values()), mx.array(0.0)))
    factor = mx.minimum(1.0, most / (total + 1e-6))
    return {name: g * factor for name, g in gradients.items()}
