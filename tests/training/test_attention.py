"""The attention of many rows of one query: where it is used, and on CUDA what it computes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import base as mlx_lm_base
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache, RotatingKVCache

from mtplx_kernel.training import attention
from mtplx_kernel.training.base import Base

STOCK = mlx_lm_base.scaled_dot_product_attention
CUDA = mx.cuda.is_available()


class Here:
    """Takes the place of the kernel: notes what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[tuple[int, ...], float]] = []
        monkeypatch.setattr(attention, "attend", self._attend)
        self.chosen: Any = attention._instead_of(STOCK)

    def _attend(self, queries: mx.array, held: KVCache, scale: float) -> mx.array:
        self.asked.append((queries.shape, scale))
        return mx.zeros_like(queries)


def ask(chosen: Any, held: Any, width: int = 1, size: int = 64, **others: Any) -> mx.array:
    dtype = others.pop("dtype", mx.bfloat16)
    queries = mx.random.normal((2, 6, width, size)).astype(dtype)
    made = mx.random.normal((2, 3, width, size)).astype(dtype)
    keys, values = held.update_and_fetch(made, made)
    found: mx.array = chosen(
        queries, keys, values, cache=held, scale=0.5, mask=others.pop("mask", None), **others
    )
    return found


def test_it_is_for_steps_of_one_token_on_plain_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(monkeypatch)
    ask(here.chosen, KVCache())
    ask(here.chosen, KVCache(), size=128, sinks=None)
    assert here.asked == [((2, 6, 1, 64), 0.5), ((2, 6, 1, 128), 0.5)]


@pytest.mark.parametrize(
    ("held", "others"),
    [
        (KVCache(), {"width": 2}),
        (KVCache(), {"size": 96}),
        (KVCache(), {"dtype": mx.float32}),
        (KVCache(), {"mask": mx.ones((1, 1), mx.bool_)}),
        (KVCache(), {"sinks": mx.zeros((6,), mx.bfloat16)}),
        (RotatingKVCache(8), {}),
    ],
)
def test_all_else_is_left_to_mlx(
    monkeypatch: pytest.MonkeyPatch, held: Any, others: dict[str, Any]
) -> None:
    here = Here(monkeypatch)
    found = ask(here.chosen, held, **others)
    assert here.asked == []
    assert mx.abs(found).max().item() > 0


def test_a_model_gets_it_for_a_while_and_only_on_cuda(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attention.many_rows(base.target.model):
        assert (llama.scaled_dot_product_attention is STOCK) == (not CUDA)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.DeviceType.gpu, 0))

    def fail_within() -> None:
        with attention.many_rows(base.target.model):
            assert llama.scaled_dot_product_attention is not STOCK
            assert mlx_lm_base.scaled_dot_product_attention is STOCK
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_within()
    assert llama.scaled_dot_product_attention is STOCK


@pytest.mark.skipif(not CUDA, reason="the kernel is for CUDA")
@pytest.mark.parametrize("size", attention.HEAD_SIZES)
@pytest.mark.parametrize("shared", [1, 3, 4])
@pytest.mark.parametrize("dtype", attention.TYPES)
def test_on_cuda_it_is_mlx_s_attention(size: int, shared: int, dtype: mx.Dtype) -> None:
    held = KVCache()
    held.step = 80
    for length in range(1, 71):
        made = mx.random.normal((2, 5, 3, 1, size)).astype(dtype)
        keys, values = held.update_and_fetch(made[0], made[1])
        queries = mx.random.normal((5, 3 * shared, 1, size)).astype(dtype)
        found = attention.attend(queries, held, size**-0.5).astype(mx.float32)
        wide = (queries.astype(mx.float32), keys.astype(mx.float32), values.astype(mx.float32))
        expected = mx.fast.scaled_dot_product_attention(*wide, scale=size**-0.5)
        assert mx.abs(found - expected).max().item() < 0.02, length
