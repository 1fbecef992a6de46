"""A progress bar where somebody watches: on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mtplx_kernel.models.watching import watched


@contextmanager
def progress_bar(total: int, what: str, wanted: bool = True) -> Iterator[Callable[[], object]]:
    """Give a function to call after each of `total` runs; the bar is gone at the end."""
    from tqdm import tqdm

    with tqdm(
        total=total, desc=what, unit="run", leave=False, disable=not (wanted and watched())
    ) as bar:
        yield bar.update
