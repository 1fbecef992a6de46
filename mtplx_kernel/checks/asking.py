"""One request of a check, which an interrupt of the check ends too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mtplx_kernel.engine.request import FinishReason, Generation

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine


PATIENCE_S = 5.0
"""The longest wait for the forward that runs when a check is interrupted."""


def ask(engine: Engine, ids: Sequence[int], **options: Any) -> Generation:
    """Run one request to its end; an exception in this thread ends it too.

    Raises
    ------
    InvalidRequest, QueueFull, EngineClosed
        Before any work.
    RequestFailed
        If it ends with an error.
    """
    handle = engine.submit(list(ids), **options)
    try:
        return handle.result()
    except BaseException:
        handle.cancel(FinishReason.INTERRUPTED)
        handle.wait(PATIENCE_S)
        raise
