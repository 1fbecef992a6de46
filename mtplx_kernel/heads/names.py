"""Renaming of checkpoint tensors by the beginnings of their names."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx


def renamed(weights: Mapping[str, mx.array], beginnings: Mapping[str, str]) -> dict[str, mx.array]:
    """Tensors under new names.

    Parameters
    ----------
    weights
        By name.
    beginnings
        From a beginning to what replaces it; the first that fits is taken. A name that none fits
        stays as it is, which the loader then refuses.
    """
    return {_renamed(name, beginnings): array for name, array in weights.items()}


def _renamed(name: str, beginnings: Mapping[str, str]) -> str:
    for old, new in beginnings.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name
