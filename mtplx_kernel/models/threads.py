"""How many threads the BLAS gets: measured at load, and fewer when cycles grow slow.

OpenBLAS threads spin at barriers. Beside another busy process, two threads on two cores can be a
hundred times slower than one, because each barrier waits for a time slice of the scheduler. Nothing
here reads a clock or imports MLX.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from statistics import median, median_low

THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_GAIN = 0.95
"""More threads must take less than this share of the time of fewer, or the fewer are kept."""


def available_cpus(limit_file: Path = _CGROUP_LIMIT) -> int:
    """How many processors this process may use, by its affinity and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else (os.cpu_count() or 1)
    try:
        quota, period = limit_file.read_text().split()
    except (OSError, ValueError):
        return max(1, count)
    if quota == "max":
        return max(1, count)
    return max(1, min(count, int(quota) // int(period)))


def pinned_threads(environ: Mapping[str, str] = os.environ) -> int | None:
    """The thread count that the user asked for with OPENBLAS_NUM_THREADS, or None."""
    text = environ.get(THREADS_VARIABLE, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def choose_threads(
    measure: Callable[[int], float],
    available: int,
    environ: Mapping[str, str] = os.environ,
    repeats: int = 3,
) -> int:
    """Choose the thread count that runs a piece of work fastest.

    Parameters
    ----------
    measure
        Runs the work with so many threads and returns its seconds.
    available
        The most threads to try, at least 1. Tried are 1, 2, 4, … and `available`.
    environ
        Where OPENBLAS_NUM_THREADS is looked up: a count given there is taken, and nothing is
        measured.
    repeats
        Rounds over the candidates; a candidate's time is the median of its rounds.

    Returns
    -------
    int
        The fastest count; of near equals (5%) the smallest, which leaves room for the kernel's own
        threads.
    """
    pinned = pinned_threads(environ)
    if pinned is not None:
        return pinned
    candidates = [1]
    while candidates[-1] < available:
        candidates.append(min(2 * candidates[-1], available))
    if len(candidates) == 1:
        return 1
    times: dict[int, list[float]] = {count: [] for count in candidates}
    for _ in range(repeats):
        for count in candidates:
            times[count].append(measure(count))
    best = 1
    for count in candidates[1:]:
        if median(times[count]) < _GAIN * median(times[best]):
            best = count
    return best


class ThreadGovernor:
    """Watches the times of decode cycles and says how many BLAS threads to use next.

    It owns the history of cycle times and the count in force, `threads`; the caller applies that
    count. Cycles are compared with cycles of the same shape only (rows, tokens a row, and the
    context in coarse steps).

    Parameters
    ----------
    threads
        The count chosen at load. With 1, or when `pinned`, nothing ever changes.
    pinned
        True when the user asked for that count.
    """

    window = 8
    slow_factor = 3.0
    probe_cycles = 4
    first_probe_after = 128
    last_probe_after = 4096

    def __init__(self, threads: int, pinned: bool = False) -> None:
        self.full = threads
        self.threads = threads
        self.reason: str | None = None
        self._active = threads > 1 and not pinned
        self._recent: dict[Hashable, deque[float]] = {}
        self._best: dict[Hashable, float] = {}
        self._single: dict[Hashable, float] = {}
        self._probe: list[float] | None = None
        self._probe_after = self.first_probe_after
        self._since_change = 0

    def observe(self, shape: Hashable, seconds: float) -> int:
        """Take the time of one cycle and return the thread count for the next."""
        if not self._active:
            return self.threads
        self._since_change += 1
        if self._probe is not None:
            self._judge_probe(shape, seconds)
            return self.threads
        recent = self._recent.setdefault(shape, deque(maxlen=self.window))
        recent.append(seconds)
        if len(recent) == self.window:
            if self.threads == self.full:
                self._watch(shape, median_low(recent))
            else:
                self._single[shape] = median_low(recent)
        if self.threads != self.full and self._since_change >= self._probe_after:
            self._start_probe()
        return self.threads

    def _watch(self, shape: Hashable, now: float) -> None:
        best = self._best[shape] = min(now, self._best.get(shape, now))
        if now > self.slow_factor * best:
            self._change(1)
            self.reason = (
                f"cycles took {now / best:.1f}x their best time with {self.full} BLAS threads,"
                " as when another process is busy: 1 thread for now"
            )

    def _start_probe(self) -> None:
        self._change(self.full)
        self._probe = []

    def _judge_probe(self, shape: Hashable, seconds: float) -> None:
        """Keep the full count when its cycles are no slower than those of one thread.

        Otherwise, or when only shapes came that one thread never ran, the next probe waits twice as
        long.
        """
        assert self._probe is not None
        single = self._single.get(shape)
        if single is not None:
            self._probe.append(seconds / single)
        elif self._since_change < 2 * self.probe_cycles:
            return
        slow = sum(ratio > self.slow_factor for ratio in self._probe)
        if slow < 2 and 0 < len(self._probe) < self.probe_cycles:
            return
        if self._probe and slow < 2 and median(self._probe) <= 1.0:
            self.reason = None
            self._probe_after = self.first_probe_after
            self._best.clear()
        else:
            self._change(1)
            self._probe_after = min(2 * self._probe_after, self.last_probe_after)
        self._probe = None

    def _change(self, threads: int) -> None:
        self.threads = threads
        self._since_change = 0
        self._recent.clear()
