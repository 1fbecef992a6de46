"""The NumPy formulas against what layers of the `transformers` library gave for the same heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.heads.oracle import (
    ernie4_5_moe,
    exaone_moe,
    formula,
    mimo,
    mimo_v2_flash,
    qwen,
    step3p5,
)
from tests.heads.oracle.cases import embedded, features
from tests.heads.oracle.stored import RESULTS
from tests.heads.published import Published


def tensors(published: Published) -> dict[str, NDArray[np.float64]]:
    return {n: a.astype(np.float64) for n, a in published.head.items()}


def step_without_limit() -> Any:
    return step3p5.states(step3p5.tensors(step3p5.published().head), formula.mlp)


FORMULAS: dict[str, Callable[[], Any]] = {
    "qwen3_next": lambda: qwen.states(qwen.next_one().head),
    "qwen3_5": lambda: qwen.states(qwen.dense().head),
    "mimo_7b": lambda: mimo.states(tensors(mimo.published())),
    "mimo_v2": lambda: mimo_v2_flash.states(tensors(mimo_v2_flash.published())),
    "exaone_global": lambda: exaone_moe.states(tensors(exaone_moe.published()), sliding=False),
    "exaone_sliding": lambda: exaone_moe.states(tensors(exaone_moe.published()), sliding=True),
    "step3p5_without_limit": step_without_limit,
    "ernie_dense": lambda: ernie4_5_moe.states(tensors(ernie4_5_moe.published())),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula_is_the_librarys(name: str) -> None:
    with np.load(RESULTS) as stored:
        expected = stored[name]
    found = FORMULAS[name]()(features().astype(np.float64), embedded().astype(np.float64))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
