"""Attention for writing on CUDA: one query a row, thousands of rows.

MLX's own kernel gives each row and head a thread block of 1,024 threads, whatever the length of the
text. That suits a few long texts. With 4,096 texts of a few hundred tokens it took four fifths of a
step; the kernel here gives a row's key-value head one warp of 32 threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

ATTENTION = "scaled_dot_product_attention"
"""Under this name mlx-lm's models hold the function that they call."""
HEAD_SIZES = (64, 128)
TYPES = (mx.bfloat16, mx.float16)
WARP = 32
WARPS = 4
"""Of a thread block."""

SOURCE = r"""
  // A warp reads four keys at a time: eight threads a key, each with PART of its numbers.
  constexpr int SIZE = 8 * PART;
  int head = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (head >= sizes[1]) return;
  int lane = threadIdx.x & 31, group = lane >> 3, first = (lane & 7) * PART;
  int length = sizes[0];
  const T* key = keys + (long long)head * ROOM * SIZE + first;
  const T* value = values + (long long)head * ROOM * SIZE + first;
  float query[SHARED][PART], sum[SHARED][PART], most[SHARED], total[SHARED];
  for (int r = 0; r < SHARED; r++) {
    most[r] = -1e30f;
    total[r] = 0.f;
    for (int d = 0; d < PART; d++) {
      float number = float(queries[((long long)head * SHARED + r) * SIZE + first + d]);
      query[r][d] = number * scale[0] * 1.4426950408889634f;  // log2 e: powers of 2 are cheaper
      sum[r][d] = 0.f;
    }
  }
  #pragma unroll 2
  for (int at = 0; at < length; at += 4) {
    bool real = at + group < length;
    long long place = (long long)(real ? at + group : length - 1) * SIZE;
    __align__(16) T k[PART];
    __align__(16) T v[PART];
    for (int d = 0; d < PART; d += 8) {
      *reinterpret_cast<uint4*>(k + d) = *reinterpret_cast<const uint4*>(key + place + d);
      *reinterpret_cast<uint4*>(v + d) = *reinterpret_cast<const uint4*>(value + place + d);
    }
    for (int r = 0; r < SHARED; r++) {
      float score = 0.f;
      for (int d = 0; d < PART; d++) score += query[r][d] * float(k[d]);
      for (int step = 1; step < 8; step <<= 1)
        score += __shfl_xor_sync(0xffffffff, score, step);
      if (!real) score = -1e30f;
      float larger = fmaxf(most[r], score);
      float old = exp2f(most[r] - larger);
      float weight = real ? exp2f(score - larger) : 0.f;
      most[r] = larger;
      total[r] = total[r] * old + weight;
      for (int d = 0; d < PART; d++) sum[r][d] = sum[r][d] * old + weight * float(v[d]);
    }
  }
  for (int r = 0; r < SHARED; r++) {
    for (int step = 8; step < 32; step <<= 1) {
      float other = __shfl_xor_sync(0xffffffff, most[r], step);
      float larger = fmaxf(most[r], other);
      float mine = exp2f(most[r] - larger), its = exp2f(other - larger);
      total[r] = total[r] * mine + __shfl_xor_sync(0xffffffff, total[r], step) * its;
      for (int d = 0; d < PART; d++)
        sum[r][d] = sum[r][d] * mine + __shfl_xor_sync(0xffffffff, sum[r][d], step) * its;
      most[r] = larger;
    }
    if (group == 0)
      for (int d = 0; d < PART; d++)
        out[((long long)head * SHARED + r) * SIZE + first + d] = T(sum[r][d] / total[r]);
  }
"""
"""Scaled dot products and a softmax that is corrected as larger scores come (Milakov and Gimelshein
2018, arXiv:1805.02867), for all query heads that share the keys."""


@contextmanager
def many_rows(model: Any) -> Iterator[None]:
    """Let a model attend with this kernel where it fits: on CUDA, in steps of one token a row.

    Everything else, and every other model of the process once this is left, is as before.
    """
    on_cuda = mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu
    modules = _modules(model) if on_cuda else []
    stock = [getattr(module, ATTENTION) for module in modules]
    try:
        for module, attend in zip(modules, stock, strict=True):
            setattr(module, ATTENTION, _instead_of(attend))
        yield
    finally:
        for module, attend in zip(modules, stock, strict=True):
            setattr(module, ATTENTION, attend)


def attend(queries: mx.array, held: KVCache, scale: float) -> mx.array:
    """Attention of one query a row over what a cache holds.

    Parameters
    ----------
    queries
        Shape (rows, heads, 1, size); 16 bits.
    held
        A cache with the keys and values of that token and those before it.
    scale
        Of the products.

    Returns
    -------
    mx.array
        Of the shape of the queries.
    """
    assert held.keys is not None
    rows, heads, _, size = queries.shape
    shared_heads, room = held.keys.shape[1:3]
    pairs = rows * shared_heads
    found: list[mx.array] = _kernel()(
        inputs=[
            queries,
            held.keys,
            held.values,
            mx.array([held.offset, pairs], mx.int32),
            mx.array([scale, 0.0]),
        ],
        template=[
            ("T", queries.dtype),
            ("SHARED", heads // shared_heads),
            ("PART", size // 8),
            ("ROOM", room),
        ],
        grid=(-(-pairs // WARPS) * WARPS * WARP, 1, 1),
        threadgroup=(WARPS * WARP, 1, 1),
        output_shapes=[queries.shape],
        output_dtypes=[queries.dtype],
    )
    return found[0]


@cache
def _kernel() -> Any:
    made: Any = mx.fast.cuda_kernel(
        name="one_query_a_row",
        input_names=["queries", "keys", "values", "sizes", "scale"],
        output_names=["out"],
        source=SOURCE,
    )
    return made


def _instead_of(stock: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def chosen(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        **others: Any,
    ) -> mx.array:
        if (
            type(cache) is KVCache
            and queries.shape[2] == 1
            and queries.shape[3] == values.shape[3]
            and queries.shape[3] in HEAD_SIZES
            and queries.dtype in TYPES
            and mask is None
            and not any(other is not None for other in others.values())
        ):
            return attend(queries, cache, scale)
        return stock(queries, keys, values, cache=cache, scale=scale, mask=mask, **others)

    return chosen


def _modules(model: Any) -> list[ModuleType]:
    """The modules of a model's layers that hold mlx-lm's attention function."""
    names = {type(part).__module__ for part in model.modules()}
    return [sys.modules[name] for name in sorted(names) if hasattr(sys.modules[name], ATTENTION)]
