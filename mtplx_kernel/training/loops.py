"""Finding where rows begin to repeat themselves: a head that trains on loops learns to copy."""

from __future__ import annotations

from typing import Any

import numpy as np

RUN = 8
TIMES = 4


def loop_starts(tokens: Any, chunk: int = 4096) -> Any:
    """Where each row begins to loop: the second of four or more equal runs of eight tokens.

    Parameters
    ----------
    tokens
        Ids, an integer NumPy array of shape (rows, length).
    chunk
        Rows at a time.

    Returns
    -------
    numpy.ndarray
        int, shape (rows,); the length where a row does not loop.
    """
    parts = [_starts(tokens[n : n + chunk]) for n in range(0, len(tokens), chunk)]
    return np.concatenate(parts) if parts else np.zeros(0, int)


def _starts(tokens: Any) -> Any:
    rows, length = tokens.shape
    width = length - RUN + 1
    if width < TIMES:
        return np.full(rows, length)
    hashed = np.zeros((rows, width), np.uint64)
    for n in range(RUN):
        # Multiplication wraps around; 64 bits make a chance collision of four runs negligible.
        hashed = hashed * np.uint64(0x9E3779B97F4A7C15) + tokens[:, n : n + width].astype(np.uint64)
        hashed ^= hashed >> np.uint64(29)
    places = np.argsort(hashed, axis=1, kind="stable")
    hashed = np.take_along_axis(hashed, places, axis=1)
    # Equal runs lie side by side, in the order of their places.
    many = hashed[:, TIMES - 1 :] == hashed[:, : width - TIMES + 1]
    seconds = places[:, 1 : width - TIMES + 2]
    return np.where(many, seconds, length).min(axis=1)
