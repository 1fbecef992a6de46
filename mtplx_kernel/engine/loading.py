"""From a name to a running engine."""

from __future__ import annotations

import os
from typing import Any

from mtplx_kernel.engine.engine import PREFIX_MB, QUEUE_LIMIT, Engine


def load(
    name: str | os.PathLike[str],
    *,
    head: str | os.PathLike[str] = "auto",
    mode: str | None = None,
    scheduler: str = "serial",
    queue_limit: int = QUEUE_LIMIT,
    memory_gb: float | None = None,
    prefix_cache_mb: float = PREFIX_MB,
    progress: bool = True,
    **settings: Any,
) -> Engine:
    """Load a model and start its engine.

    Parameters
    ----------
    name
        A catalog name (`%mtplx models` lists them), a local mlx-lm folder, or a hub id.
    head
        The MTP head that drafts for it. "auto": the checkpoint's own, else a distilled one in its
        folder, else the one that ships with this package for this name. "none": the request's own
        text is all that drafts. Otherwise the path of a distilled head, or of a folder with one.
    mode
        The default generation mode; None takes "mtp" where the model can.
    scheduler
        The scheduler mode.
    queue_limit
        How many requests may wait.
    memory_gb
        Budget for weights and caches, in GB (10^9 bytes): a request whose caches can never fit is
        refused. None takes 85 % of the device's memory.
    prefix_cache_mb
        Memory, in MB (10^6 bytes), for what prompts have in common, so that it is fed once; 0 for
        none.
    progress
        Show a progress bar where somebody watches: while the model is downloaded, read and
        measured, and later while schedulers are.
    **settings
        Of the scheduler mode: see `mtplx_kernel.scheduling.options.SchedulerOptions`.

    Raises
    ------
    ModelNotFound, ModelUnusable, InvalidRequest
        If there is no such model, it is damaged or unknown to mlx-lm, its head is not to be used,
        or an option is wrong.
    """
    return Engine(
        name,
        head=head,
        mode=mode,
        scheduler=scheduler,
        queue_limit=queue_limit,
        memory_gb=memory_gb,
        prefix_cache_mb=prefix_cache_mb,
        progress=progress,
        **settings,
    )
