"""The head of Nemotron 3 against the blocks of transformers."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.nemotron_h import owns, pattern, read
from tests.heads.fixtures.checkpoints import CONFIGS, tensors
from tests.heads.fixtures.harness import assert_ragged, assert_reference, expected, load

KIND = "nemotron_h"


def test_as_published(tmp_path: Path) -> None:
    _, head = load(KIND, tmp_path)
    assert (head.family, head.taps) == (KIND, ("final",))
    assert (head.embed, head.output) == (None, None)
    assert_reference(head, KIND, expected(KIND))


def test_rows_of_unlike_lengths(tmp_path: Path) -> None:
    assert_ragged(load(KIND, tmp_path)[1], KIND)


def test_all_blocks_share_one_cache(tmp_path: Path) -> None:
    _, head = load(KIND, tmp_path)
    assert len(head.make_cache()) == 1
    assert [block.block_type for block in head.layers[0].blocks] == ["*", "E"]


def test_a_second_head_is_left_out(tmp_path: Path) -> None:
    second = {
        name.replace("layers.1", "layers.3").replace("layers.0", "layers.2"): array + 1
        for name, array in tensors(KIND).items()
        if owns(name, {})
    }
    _, head = load(KIND, tmp_path, dict(second))
    assert_reference(head, KIND, expected(KIND))


def test_experts_are_stacked_in_their_order() -> None:
    held = {n: mx.array(a) for n, a in tensors(KIND).items() if owns(n, {})}
    made = read(held, CONFIGS[KIND])
    up = made["layers.0.blocks.1.mixer.switch_mlp.fc1.weight"]
    down = made["layers.0.blocks.1.mixer.switch_mlp.fc2.weight"]
    assert (up.shape, down.shape) == ((8, 24, 16), (8, 16, 24))
    for expert in (0, 7):
        name = f"mtp.layers.1.mixer.experts.{expert}"
        np.testing.assert_array_equal(up[expert], held[f"{name}.up_proj.weight"])
        np.testing.assert_array_equal(down[expert], held[f"{name}.down_proj.weight"])


@pytest.mark.parametrize(
    ("config", "letters"),
    [
        ({}, "*E"),
        ({"mtp_hybrid_override_pattern": "*EE"}, "*EE"),
        ({"mtp_layers_block_type": ["full_attention", "moe"]}, "*E"),
    ],
)
def test_the_config_says_which_blocks_there_are(config: dict[str, object], letters: str) -> None:
    assert pattern(config) == letters


@pytest.mark.parametrize("letters", ["**", "ME", "E"])
def test_other_blocks_are_refused(letters: str) -> None:
    with pytest.raises(ModelUnusable, match="must hold one attention block"):
        pattern({"mtp_hybrid_override_pattern": letters})
