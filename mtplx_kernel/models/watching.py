"""Whether somebody watches: then long work shows a progress bar."""

from __future__ import annotations

import sys


def watched() -> bool:
    """Whether the errors' stream is a terminal, or this is a Jupyter kernel."""
    return sys.stderr.isatty() or _in_kernel()


def _in_kernel() -> bool:
    """IPython is loaded in a kernel, and its shell has one."""
    loaded = sys.modules.get("IPython")
    return loaded is not None and getattr(loaded.get_ipython(), "kernel", None) is not None
