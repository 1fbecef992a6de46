"""The prompt on which the formulas meet the stored results of `against_transformers`."""

from __future__ import annotations

import numpy as np

from tests.heads.published import HIDDEN, Array

LENGTH = 9


def features() -> Array:
    """The target's states, shape (length, hidden)."""
    return np.random.default_rng(21).standard_normal((LENGTH, HIDDEN)).astype(np.float32)


def embedded() -> Array:
    """Embeddings of the tokens after them, shape (length, hidden)."""
    return np.random.default_rng(22).standard_normal((LENGTH, HIDDEN)).astype(np.float32)
