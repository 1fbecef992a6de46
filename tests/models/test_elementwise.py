"""The compiled norms and rotary embeddings give the bits of MLX's own."""

from __future__ import annotations

from itertools import islice
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn import RMSNorm, RoPE, Sequential
from mlx_lm.generate import generate_step

from mtplx_kernel.models.elementwise import (
    MOST_TOKENS,
    Angles,
    CompiledRMSNorm,
    CompiledRoPE,
    speed_up,
)
from tests.tiny import CONFIGS, build

TOKENS = (1, 2, 5, 17, MOST_TOKENS, MOST_TOKENS + 1)


@pytest.mark.parametrize("offset", [0, 1, 7, 511, 8000, [3, 77], [0, 5000]])
@pytest.mark.parametrize(
    ("dims", "base", "scale"), [(64, 1e5, 1.0), (16, 1e4, 1.0), (32, 1e6, 0.25)]
)
def test_rope_is_the_same_to_the_bit(
    dims: int, base: float, scale: float, offset: int | list[int]
) -> None:
    plain, ours = (RoPE(dims, base=base, scale=scale) for _ in range(2))
    speed_up(Sequential(ours))
    assert type(ours) is CompiledRoPE
    where: Any = mx.array(offset) if isinstance(offset, list) else offset
    for tokens in TOKENS:
        for width in (64, 80):
            x = mx.random.normal((2, 3, tokens, width), key=mx.random.key(tokens))
            assert mx.array_equal(ours(x, offset=where), plain(x, offset=where))


def test_rms_norm_is_the_same_to_the_bit() -> None:
    plain, ours = (RMSNorm(64, eps=1e-5) for _ in range(2))
    plain.weight = ours.weight = mx.random.normal((64,), key=mx.random.key(0))
    speed_up(Sequential(ours))
    assert type(ours) is CompiledRMSNorm
    for tokens in TOKENS:
        x = mx.random.normal((2, tokens, 64), key=mx.random.key(tokens))
        assert mx.array_equal(ours(x), plain(x))


def test_other_rotations_and_norms_are_left_alone() -> None:
    class OwnNorm(RMSNorm):
        """A family's own variant."""

    paired, own = RoPE(8, traditional=True), OwnNorm(8)
    speed_up(Sequential(paired, own))
    assert type(paired) is RoPE
    assert type(own) is OwnNorm


def test_layers_share_the_angles_of_a_forward() -> None:
    angles = Angles(8, 1e4, 1.0)
    first = angles.at(5, 2)
    assert angles.at(5, 2)[0] is first[0]
    assert angles.at(6, 2)[0] is not first[0]
    assert angles.at(5, 3)[0].shape == (3, 4)
    rows = mx.array([5, 6])
    shared = angles.at(rows, 2)
    assert shared[0].shape == (2, 1, 2, 4)
    assert angles.at(rows, 2)[0] is shared[0]
    assert angles.at(mx.array([5, 9]), 2)[0] is not shared[0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_whole_model_says_the_same(kind: str) -> None:
    def say(model: Any) -> list[int]:
        prompt = mx.array([5, 6, 7, 8])
        return [t for t, _ in islice(generate_step(prompt, model, max_tokens=12), 12)]

    fast = build(kind)
    speed_up(fast)
    assert say(fast) == say(build(kind))


def test_parameters_keep_their_names() -> None:
    from mlx.utils import tree_flatten

    model = build("llama")
    before = [name for name, _ in tree_flatten(model.parameters())]
    speed_up(model)
    assert [name for name, _ in tree_flatten(model.parameters())] == before
