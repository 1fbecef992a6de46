"""Heads of Qwen3-Next and Qwen 3.5 against the formula, in the layouts that exist of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.heads.agreement import assert_follows
from tests.heads.oracle import qwen
from tests.heads.published import Published, Tensors, open_head

EMBEDDING = {"qwen3_next": "model.embed_tokens.weight"}
WITH_EYES = "model.language_model.embed_tokens.weight"


def check(folder: Path, published: Published, formula_of: Tensors, normed: bool = True) -> None:
    _, head = open_head(folder)
    name = EMBEDDING.get(published.config["model_type"], WITH_EYES)
    embedding = published.base[name].astype(np.float64)
    output = published.base["lm_head.weight"].astype(np.float64)
    assert_follows(head, embedding, qwen.states(formula_of, normed), lambda y: y @ output.T)


@pytest.mark.parametrize("normed", [True, False])
def test_qwen3_next_as_published(tmp_path: Path, normed: bool) -> None:
    published = qwen.next_one(normed)
    check(published.write(tmp_path), published, published.head, normed)


def test_qwen3_5_dense_as_published(tmp_path: Path) -> None:
    published = qwen.dense()
    assert len(published.head) == 15
    check(published.write(tmp_path), published, published.head)


@pytest.mark.parametrize("fused", [True, False])
def test_qwen3_5_mixture_as_published(tmp_path: Path, fused: bool) -> None:
    published = qwen.mixture(fused)
    check(published.write(tmp_path), published, qwen.mixture(in_one=False).head)
