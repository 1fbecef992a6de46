"""An LLM engine inside a Jupyter kernel: multi-token prediction with exact verification.

Importing this package imports neither MLX nor mlx-lm: the names below load what they need on use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtplx_kernel.client import AsyncMTPLXClient, MTPLXClient
    from mtplx_kernel.decoding.params import SamplingParams
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.engine.loading import load
    from mtplx_kernel.engine.request import Generation, Handle
    from mtplx_kernel.extension import (
        current,
        current_endpoint,
        load_ipython_extension,
        unload_ipython_extension,
    )

__version__ = "0.1.0"

_HOMES = {
    "AsyncMTPLXClient": "mtplx_kernel.client",
    "Engine": "mtplx_kernel.engine.engine",
    "Generation": "mtplx_kernel.engine.request",
    "Handle": "mtplx_kernel.engine.request",
    "MTPLXClient": "mtplx_kernel.client",
    "SamplingParams": "mtplx_kernel.decoding.params",
    "current": "mtplx_kernel.extension",
    "current_endpoint": "mtplx_kernel.extension",
    "load": "mtplx_kernel.engine.loading",
    "load_ipython_extension": "mtplx_kernel.extension",
    "unload_ipython_extension": "mtplx_kernel.extension",
}

__all__ = [
    "AsyncMTPLXClient",
    "Engine",
    "Generation",
    "Handle",
    "MTPLXClient",
    "SamplingParams",
    "current",
    "current_endpoint",
    "load",
    "load_ipython_extension",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ImportError as error:
        _explain_missing_backend(error)
        raise
    return getattr(home, name)


def _explain_missing_backend(error: ImportError) -> None:
    """Raise BackendMissing where it is MLX that cannot be imported."""
    reason = " ".join(str(error).split())
    if "libmlx" in reason or (error.name or "").partition(".")[0] == "mlx":
        from mtplx_kernel.errors import BackendMissing

        raise BackendMissing(
            f"MLX cannot be imported ({reason}): on Linux it needs exactly one of the extras cpu, "
            "cuda12 and cuda13; pip install 'mtplx-kernel[cpu]', or the extra for your GPU's "
            "driver, and restart Python"
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
