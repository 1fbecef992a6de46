"""Widening a head changes nothing that it gives, and narrowing is refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.training.base import Base, load_base, new_head
from mtplx_kernel.training.distill import Options, distill, load_head
from mtplx_kernel.training.widen import widened
from tests import tiny
from tests.training.conftest import COLUMNS


def test_a_widened_head_drafts_the_same(base: Base) -> None:
    head = new_head(base, mx.arange(COLUMNS, dtype=mx.int32), seed=1)
    now = head.config.intermediate
    wide = widened(head, base.target.shared, now + 40, seed=2)
    assert asdict(wide.config) == {**asdict(head.config), "intermediate": now + 40}
    features = mx.random.normal((1, 5, base.hidden * len(head.taps)), key=mx.random.key(3))
    tokens = mx.array([[1, 2, 3, 4, 5]])
    one, other = (h.feed(features, tokens, h.make_cache()) for h in (head, wide))
    assert np.allclose(one, other, atol=1e-5)
    parts = dict(tree_flatten(wide.parameters()))
    assert (parts["mlp.down_proj.weight"][:, now:] == 0).all()
    # What they read is not nothing: else they could never learn.
    assert mx.abs(parts["mlp.up_proj.weight"][now:]).min() > 0


def test_a_head_does_not_become_narrower(base: Base) -> None:
    head = new_head(base, mx.arange(COLUMNS, dtype=mx.int32), seed=1)
    now = head.config.intermediate
    with pytest.raises(InvalidRequest, match=f"the head is {now} wide and cannot become narrower"):
        widened(head, base.target.shared, now - 1, seed=2)


SHORT = Options(
    tokens=1600, length=160, writing_rows=10, rows=4, depth=2, steps=2, draft_vocab=100, judged=0
)


def test_a_distillation_widens_what_it_begins_with(tmp_path: Path) -> None:
    model, first, second = tiny.write("llama", tmp_path / "model"), tmp_path / "a", tmp_path / "b"
    distill(model, first, SHORT)
    now = load_head(load_base(model), first / "head.safetensors").config.intermediate
    distill(model, second, replace(SHORT, begin=str(first), width=now + 64, aim=0.5))
    made = load_head(load_base(model), second / "head.safetensors")
    assert made.config.intermediate == now + 64
    # The new columns have learnt something.
    assert mx.abs(made.mlp.down_proj.weight[:, now:]).max() > 0
    told = " ".join((second / "README.md").read_text().split())
    assert f"a feed-forward layer of {now + 64:,} columns" in told
    assert "the chance of acceptance at temperature 0.5" in told


def test_too_narrow_is_refused_before_the_model_writes(tmp_path: Path) -> None:
    model = tiny.write("llama", tmp_path / "model")
    with pytest.raises(InvalidRequest, match="cannot become narrower; not 1"):
        distill(model, tmp_path / "out", replace(SHORT, width=1))
    assert not (tmp_path / "out").exists()
