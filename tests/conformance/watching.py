"""What a process takes, looked at from outside: its memory, its threads, its open files."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Taken:
    """What a process has now.

    Attributes
    ----------
    memory_mb
        Its resident memory, in units of 10^6 bytes.
    threads, files
        How many of each; None where the system has no /proc to tell.
    """

    memory_mb: float
    threads: int | None
    files: int | None

    @classmethod
    def of(cls, pid: int) -> Taken:
        """Look at a process."""
        told = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
        )
        return cls(
            memory_mb=int(told.stdout) * 1024 / 1e6,
            threads=_entries(Path(f"/proc/{pid}/task")),
            files=_entries(Path(f"/proc/{pid}/fd")),
        )


def _entries(folder: Path) -> int | None:
    return len(list(folder.iterdir())) if folder.is_dir() else None


@asynccontextmanager
async def memory_of(pid: int) -> AsyncIterator[list[float]]:
    """Note a process's memory every so often, in MB, while the block runs."""
    noted: list[float] = []

    async def watch() -> None:
        while True:
            noted.append((await asyncio.to_thread(Taken.of, pid)).memory_mb)
            await asyncio.sleep(EVERY_S)

    watching = asyncio.create_task(watch())
    try:
        yield noted
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def growth(noted: Sequence[float]) -> float:
    """How much more the last quarter took than the second, the first of the steady ones."""
    quarter = len(noted) // 4
    if quarter == 0:
        raise ValueError(f"four looks at the memory are the fewest, not {len(noted)}")
    return median(noted[-quarter:]) / median(noted[quarter : 2 * quarter]) - 1
