"""Products in pieces are the products."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.heads.one_row import MOST_PRODUCTS, MOST_ROWS, project


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 1, 8), (3 * MOST_ROWS + 5, 8)),  # many rows, the last piece smaller
        ((3000,), (700, 3000)),  # long rows
        ((1, 4), (10, 4)),  # one piece
        ((2, 8), (3 * MOST_ROWS, 8)),  # two rows are multiplied whole
        ((1, MOST_PRODUCTS + 1), (2, MOST_PRODUCTS + 1)),  # a piece is at least a row
    ],
)
def test_it_is_the_product(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    x = mx.random.normal(shape, key=mx.random.key(0))
    weight = mx.random.normal(size, key=mx.random.key(1))
    found = project(x, weight)
    assert found.shape == (*shape[:-1], size[0])
    expected = np.array(x, np.float64) @ np.array(weight, np.float64).T
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-3 * np.sqrt(size[1]))
