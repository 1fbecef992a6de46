"""The head of GLM-4.7-Flash, with ends of its own, against the MTP model of transformers."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from tests.heads.fixtures.checkpoints import tensors
from tests.heads.fixtures.harness import assert_ragged, assert_reference, expected, load

KIND = "glm4_moe_lite"
FIRST = "model.layers.2"


def test_as_published(tmp_path: Path) -> None:
    _, head = load(KIND, tmp_path)
    assert (head.family, head.taps) == (KIND, ("final",))
    assert_reference(head, KIND, expected(KIND))


def test_both_ends_are_its_own(tmp_path: Path) -> None:
    target, head = load(KIND, tmp_path)
    held = tensors(KIND)
    assert head.embed is not None
    assert head.output is not None
    np.testing.assert_array_equal(head.embed.weight, held[f"{FIRST}.embed_tokens.weight"])
    np.testing.assert_array_equal(head.output.weight, held[f"{FIRST}.shared_head.head.weight"])
    states = mx.ones((1, 1, 32))
    apart = np.array(head.logits(states)[0]) - np.array(target.logits(states[0]))
    assert np.abs(apart).max() > 1


def test_the_bias_that_chooses_experts_is_float32(tmp_path: Path) -> None:
    _, head = load(KIND, tmp_path)
    bias = head.layers[0].mlp.gate.e_score_correction_bias
    assert bias.dtype == mx.float32
    np.testing.assert_array_equal(bias, tensors(KIND)[f"{FIRST}.mlp.gate.e_score_correction_bias"])


def test_rows_of_unlike_lengths(tmp_path: Path) -> None:
    assert_ragged(load(KIND, tmp_path)[1], KIND)
