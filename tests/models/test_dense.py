"""Models and heads on a CPU: float32 without quantisation, latent attention included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear
from mlx_lm.utils import load_model

from mtplx_kernel.heads.families import classes_without_head
from mtplx_kernel.models.dense import dense
from mtplx_kernel.models.load import load
from tests.models.original import converted, write

IDS = [72, 101, 108, 108, 111]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek V3, head included, whose latent projections the group size divides."""
    made = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTPLX_KERNEL_CACHE", str(made / "cache"))
        source = write("deepseek_v3", made / "source", torch_dtype="float32")
        converted(source, made / "eight", bits=8)
    return made / "eight"


def arrays(module: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def packed(module: Any) -> list[str]:
    return [path for path, inner in module.named_modules() if "scales" in inner]


def test_latent_projections_of_the_target_become_dense(folder: Path) -> None:
    model, _ = load_model(folder, get_model_classes=classes_without_head)
    attention = model.model.layers[0].self_attn
    quantised = attention.unembed_out
    assert isinstance(quantised, QuantizedMultiLinear)
    mine = nn.Module()
    mine.inner = quantised
    x = mx.random.normal((1, 4, 3, 32))
    expected = quantised(x)
    found = dense(mine).inner
    assert type(found) is MultiLinear
    assert found.weight.shape == (4, 16, 32)
    np.testing.assert_allclose(np.array(found(x)), np.array(expected), atol=1e-5)


def test_nothing_of_a_loaded_model_or_head_is_quantised(folder: Path) -> None:
    loaded = load(folder, "eight")
    assert loaded.facts.precision == "float32"
    assert loaded.head is not None
    for module in (loaded.target.model, loaded.head.head):
        assert packed(module) == []
        assert {a.dtype for a in arrays(module).values()} == {mx.float32}
    attention = loaded.head.head.layers[0].self_attn
    assert type(attention.unembed_out) is type(attention.embed_q) is MultiLinear


def test_the_dense_model_says_what_the_quantised_one_does(folder: Path) -> None:
    model, _ = load_model(folder, get_model_classes=classes_without_head)
    assert packed(model)
    model.set_dtype(mx.float32)
    quantised = model(mx.array([IDS]))
    whole = load(folder, "eight").target.model(mx.array([IDS]))
    assert float(mx.abs(quantised).max()) > 1
    np.testing.assert_allclose(np.array(whole), np.array(quantised), rtol=1e-3, atol=1e-3)
