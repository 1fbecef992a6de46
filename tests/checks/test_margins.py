"""Margins at the place where two runs part, and the tolerance they are held against."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from mtplx_kernel.checks.margins import Scores, tolerance
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.decoding.sampling import Draw, draw, noise


@pytest.mark.parametrize(
    ("precision", "device", "blas", "family", "expected"),
    [
        ("float32", "cpu", "openblas", "llama", 0.002),
        ("float32", "cpu", "accelerate", "llama", 0.002),
        ("float32", "cpu", "stock", "llama", 0.0),
        ("float32", "cpu", "stock", "deepseek_v3", 0.002),
        ("float32", "gpu", "gpu", "llama", 0.02),
        ("float16", "gpu", "gpu", "llama", 0.1),
        ("bfloat16, float32", "gpu", "gpu", "llama", 0.5),
        ("4-bit, bfloat16", "gpu", "gpu", "llama", 0.5),
        ("float8", "gpu", "gpu", "llama", 0.5),
    ],
)
def test_tolerance_follows_the_coarsest_type(
    precision: str, device: str, blas: str, family: str, expected: float
) -> None:
    assert tolerance(precision, device, blas, family) == expected


def test_the_margin_of_a_greedy_choice_is_the_gap_to_the_best() -> None:
    scores = Scores.of([(4, -0.5), (9, -0.75), (2, -3.0)], end_ids=())
    assert scores.margin(4, 9) == pytest.approx(0.25)
    assert scores.margin(9, 4) == pytest.approx(0.25)
    # Neither was the best: how far the worse one is.
    assert scores.margin(9, 2) == pytest.approx(2.5)
    assert scores.margin(4, 77) == math.inf


def test_the_end_of_a_text_is_its_likeliest_end_token() -> None:
    scores = Scores.of([(4, -0.5), (8, -1.0), (9, -2.0)], end_ids={8, 9})
    assert scores.margin(4, None) == pytest.approx(0.5)
    assert Scores.of([(4, -0.5)], end_ids=()).margin(4, None) == math.inf


@pytest.mark.parametrize("seed", range(5))
def test_the_score_of_a_draw_is_largest_where_it_fell(seed: int) -> None:
    logits = mx.random.normal((1, 50), key=mx.random.key(3)) * 2
    params = SamplingParams(temperature=0.7)
    drawn = int(draw(logits, [Draw(params, seed, 11, (), 1)]).item())
    logprobs = (logits - mx.logsumexp(logits))[0].tolist()
    found = Scores.of(list(enumerate(logprobs)), (), 0.7, noise(seed, 11, 50).tolist())
    assert found.margin(drawn) == 0.0
    assert found.margin((drawn + 1) % 50) > 0.0
