"""The test process multiplies on MLX's own BLAS: it is row-invariant, so equality is exact."""

from __future__ import annotations

import os

os.environ["MTPLX_KERNEL_BLAS"] = "stock"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
