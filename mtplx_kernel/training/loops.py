"""Telling rows that repeat themselves: a head that trains on loops learns to copy, not to guess."""

from __future__ import annotations

from typing import Any

import numpy as np

RUN = 8
TIMES = 4


def loops(tokens: Any, chunk: int = 4096) -> Any:
    """Which rows hold the same run of eight tokens four times or more.

    Parameters
    ----------
    tokens
        Ids, an integer NumPy array of shape (rows, length).
    chunk
        Rows at a time.

    Returns
    -------
    numpy.ndarray
        bool, shape (rows,).
    """
    parts = [_loops(tokens[n : n + chunk]) for n in range(0, len(tokens), chunk)]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def _loops(tokens: Any) -> Any:
    width = tokens.shape[1] - RUN + 1
    if width < TIMES:
        return np.zeros(len(tokens), bool)
    hashed = np.zeros((len(tokens), width), np.uint64)
    for n in range(RUN):
        # Multiplication wraps around; 64 bits make a chance collision of four runs negligible.
        hashed = hashed * np.uint64(0x9E3779B97F4A7C15) + tokens[:, n : n + width].astype(np.uint64)
        hashed ^= hashed >> np.uint64(29)
    hashed.sort(axis=1)
    return (hashed[:, TIMES - 1 :] == hashed[:, : width - TIMES + 1]).any(axis=1)
