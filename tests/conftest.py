"""The test process computes on the CPU with MLX's own BLAS: there, equality is exact."""

from __future__ import annotations

import os

import mlx.core as mx

# Row-invariant arithmetic: a row's numbers do not depend on the rows that share its products.
os.environ["MTPLX_KERNEL_BLAS"] = "stock"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# MLX has one default device a process, so the owner threads of engines in it follow. Processes that
# tests start are a user's: they take the machine's device.
mx.set_default_device(mx.cpu)
