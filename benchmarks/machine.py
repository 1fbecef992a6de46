"""What a benchmark ran on, and how fast its memory can be read."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

READ_BYTES = 2**30
"""Much more than processors cache."""
GPU_READS = 8


def describe(precision: str, blas: str, blas_threads: int | None) -> dict[str, Any]:
    """The machine, and the settings of it that change results, as plain data.

    Parameters
    ----------
    precision
        Of the model's weights in memory.
    blas, blas_threads
        What computes matrix products, and in how many threads.
    """
    import mlx.core as mx

    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpu": str(mx.device_info()["device_name"]) if on_gpu else None,
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "precision": precision,
        "blas": blas,
        "blas_threads": blas_threads,
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("OPENBLAS_")},
    }


class MemoryReader:
    """Measures how fast memory can be read: the processor's, or the GPU's where MLX uses one.

    Parameters
    ----------
    threads
        How many read at once; on CPUs, as many as the BLAS uses.
    size
        Bytes of each read.
    """

    def __init__(self, threads: int, size: int = READ_BYTES) -> None:
        import mlx.core as mx

        self._read: Callable[[], float]
        if mx.default_device().type == mx.DeviceType.gpu:
            self._read = _gpu_reader(size)
        else:
            self._read = _cpu_reader(threads, size)
        self._size = size

    def bytes_per_second(self, reads: int = 3) -> float:
        """The fastest of several reads: a limit is what can be reached, not what usually is."""
        return self._size / min(self._read() for _ in range(reads))


def _cpu_reader(threads: int, size: int) -> Callable[[], float]:
    # The C library's memchr does nothing but read, and calls through ctypes run in parallel.
    search = ctypes.CDLL(None).memchr
    search.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    search.restype = ctypes.c_void_p
    # Not zeros: untouched zero pages are one page, which would be read from a cache.
    data = b"\x01" * size
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    assert address is not None
    part = size // threads

    def read() -> float:
        workers = [
            threading.Thread(target=search, args=(address + n * part, 0, part))
            for n in range(threads)
        ]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = time.perf_counter() - started
        assert len(data) == size  # keeps the buffer alive as long as this function
        return elapsed

    return read


def _gpu_reader(size: int) -> Callable[[], float]:
    import mlx.core as mx

    def read() -> float:
        data = mx.ones((size // 4,), mx.float32)
        mx.eval(data)
        started = time.perf_counter()
        # Several at once: starting one takes long beside reading it.
        mx.eval([mx.max(data) for _ in range(GPU_READS)])
        elapsed = time.perf_counter() - started
        del data
        mx.clear_cache()
        return elapsed / GPU_READS

    return read


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
