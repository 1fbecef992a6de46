"""An LLM engine inside a Jupyter kernel: multi-token prediction with exact verification.

Importing this package imports neither MLX nor mlx-lm: the names below load what they need on use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtplx_kernel.decoding.params import SamplingParams
    from mtplx_kernel.engine.engine import Engine, load
    from mtplx_kernel.engine.request import Generation, Handle
    from mtplx_kernel.extension import (
        current,
        load_ipython_extension,
        unload_ipython_extension,
    )

__version__ = "0.1.0"

_HOMES = {
    "Engine": "mtplx_kernel.engine.engine",
    "Generation": "mtplx_kernel.engine.request",
    "Handle": "mtplx_kernel.engine.request",
    "SamplingParams": "mtplx_kernel.decoding.params",
    "current": "mtplx_kernel.extension",
    "load": "mtplx_kernel.engine.engine",
    "load_ipython_extension": "mtplx_kernel.extension",
    "unload_ipython_extension": "mtplx_kernel.extension",
}

__all__ = [
    "Engine",
    "Generation",
    "Handle",
    "SamplingParams",
    "current",
    "load",
    "load_ipython_extension",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
