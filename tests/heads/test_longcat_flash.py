"""The head of LongCat Flash against the modules of transformers."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.heads.fixtures.checkpoints import tensors
from tests.heads.fixtures.harness import assert_ragged, assert_reference, expected, load, run

KIND = "longcat_flash"


def test_as_published(tmp_path: Path) -> None:
    _, head = load(KIND, tmp_path)
    assert (head.family, head.taps) == (KIND, ("final",))
    assert head.embed is not None
    assert head.output is None
    assert_reference(head, KIND, expected(KIND))


def test_an_embedding_that_repeats_the_models_is_shared(tmp_path: Path) -> None:
    same = {"model.mtp.embed_tokens.weight": tensors(KIND)["model.embed_tokens.weight"]}
    _, head = load(KIND, tmp_path, dict(same))
    assert head.embed is None
    assert np.abs(run(head, KIND)[0] - expected(KIND)[0]).max() > 0.01
    head.embed = nn.Embedding(64, 32)
    head.embed.weight = mx.array(tensors(KIND)["model.mtp.embed_tokens.weight"])
    assert_reference(head, KIND, expected(KIND))


@pytest.mark.parametrize("scale", ["mla_scale_q_lora", "mla_scale_kv_lora"])
def test_both_scales_of_the_latents_count(tmp_path: Path, scale: str) -> None:
    _, head = load(KIND, tmp_path)
    setattr(head.layers[0].self_attn, scale, 1.0)
    assert np.abs(run(head, KIND)[0] - expected(KIND)[0]).max() > 0.01


def test_rows_of_unlike_lengths(tmp_path: Path) -> None:
    assert_ragged(load(KIND, tmp_path)[1], KIND)
