"""Norms of a head: which tensors they are, and whether they lack 1 or are damaged."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx


def is_norm(name: str, array: mx.array) -> bool:
    """Whether a parameter is the weight of a norm."""
    return name.endswith("norm.weight") and array.ndim == 1


def lacks_one(weights: Mapping[str, mx.array]) -> bool:
    """Whether some norm is negative on average, as only one can be that 1 is to be added to."""
    return any(bool(mx.mean(a) < 0) for name, a in weights.items() if is_norm(name, a))


def damaged_norms(weights: Mapping[str, mx.array]) -> list[str]:
    """Norms with values that are not finite; they are small, so that looking costs nothing."""
    finite = {n: mx.all(mx.isfinite(a)) for n, a in weights.items() if is_norm(n, a)}
    mx.eval(finite)
    return sorted(name for name, all_finite in finite.items() if not all_finite.item())
