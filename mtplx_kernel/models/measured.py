"""What was measured on this machine for one model, kept between loads as small cached files.

Only plain data is kept, and a file is good for one key: the machine, the versions, the model and
its head. A cache that cannot be read or written costs a new measurement, never an error.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from mtplx_kernel.models.catalog import cache_dir
from mtplx_kernel.models.manifest import MANIFEST, sha256
from mtplx_kernel.models.threads import available_cpus, pinned_threads

FOLDER = "measured"
FORMAT = 1
LONGEST_AGE_S = 30 * 24 * 3600.0
LONGEST_S = 3600.0
"""No forward takes as long."""
LONGEST_BLOCK = 64
"""Blocks that a verify may have; what they cost must be above 0 also where it is extrapolated."""
DEEPEST = 16
MOST_ROWS = 64
HEAD_PARTS = {"first", "step"}
LATEST = 1e11
VERSIONED = ("mlx", "mlx-lm", "mtplx-kernel")
_THREADS = re.compile(r", \d+ threads?$")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Tuned:
    """What ``%mtplx tune`` found best: drafts a cycle, None where choosing by itself was."""

    depth: int | None
    when: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Costs of one model on one machine.

    Attributes
    ----------
    tokens, seconds
        The cost curve: seconds of a forward by the number of tokens in its block.
    head
        Seconds of the head's parts, "first" and "step"; empty without a head.
    threads
        BLAS threads that were found fastest; None where they cannot be set.
    when
        Unix time of the measurement.
    tuned
        The depth that was tuned for; None before any tuning. It is kept apart, by `keep_tuned`:
        measuring anew does not lose it.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    head: Mapping[str, float] = field(default_factory=dict)
    threads: int | None = None
    when: float = field(default_factory=time.time)
    tuned: Tuned | None = None

    def __post_init__(self) -> None:
        numbers = (*self.seconds, *self.head.values())
        if len(self.tokens) != len(self.seconds) or len(self.tokens) < 2:
            raise ValueError("a cost curve has as many seconds as block lengths, at least two")
        if list(self.tokens) != sorted(set(self.tokens)) or self.tokens[0] != 1:
            raise ValueError(f"block lengths ascend from 1, unlike {self.tokens}")
        if not all(math.isfinite(n) and n > 0 for n in numbers):
            raise ValueError(f"measured seconds are finite and above 0, unlike {numbers}")
        if set(self.head) not in (set(), HEAD_PARTS):
            raise ValueError(f"a head's parts are {sorted(HEAD_PARTS)}, unlike {sorted(self.head)}")

    @property
    def date(self) -> str:
        """The day of the measurement, here, as YYYY-MM-DD."""
        return _date(self.when)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Costs of forwards over several rows, measured where a scheduler mode wants them.

    Attributes
    ----------
    tokens
        Block lengths.
    seconds
        By the number of rows: seconds of a forward for each block length, with all its logits.
    head
        By the number of rows: seconds of the head's parts; empty without a head.
    position
        Seconds that the logits of one position more take.
    when
        Unix time of the oldest of the measurements.
    """

    tokens: tuple[int, ...]
    seconds: Mapping[int, tuple[float, ...]]
    head: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    position: float = 0.0
    when: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if list(self.tokens) != sorted(set(self.tokens)) or self.tokens[:1] != (1,):
            raise ValueError(f"block lengths ascend from 1, unlike {self.tokens}")
        if any(len(s) != len(self.tokens) or len(s) < 2 for s in self.seconds.values()):
            raise ValueError("every lane has as many seconds as block lengths, at least two")
        if any(set(parts) != HEAD_PARTS for parts in self.head.values()):
            raise ValueError(f"a head's parts are {sorted(HEAD_PARTS)}")


Kept = TypeVar("Kept", Measured, Tuned, Lanes)


def key(*, folder: Path, precision: str, device: str, blas: str, head: str = "none") -> str:
    """Names what a measurement is good for; equal machines and models have equal keys.

    Parameters
    ----------
    folder
        The model's; its files count, not its place: see `model`.
    precision
        Type of the weights in memory.
    device
        "cpu", or "gpu": then MLX is asked which.
    blas
        Description of the BLAS. The threads at its end do not count: they are what is measured.
    head
        What tells the head from others: `HeadFacts.identity`, or "none".

    Returns
    -------
    str
        A file name without an ending.
    """
    parts = {
        "format": FORMAT,
        "machine": machine(device, blas),
        "model": model(folder),
        "precision": precision,
        "head": head,
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def machine(device: str, blas: str) -> dict[str, str]:
    """What of this machine decides how long a forward takes, as plain text."""
    return {
        "processor": processor(),
        "cores": str(available_cpus()),
        "device": _gpu_name() if device == "gpu" else device,
        "blas": _THREADS.sub("", blas),
        "threads": str(pinned_threads() or "free"),
        **{name: _version(name) for name in VERSIONED},
    }


def model(folder: Path) -> dict[str, str]:
    """What tells a model from others, whatever folder it lies in.

    Its list of files with their digests, where this package wrote one. Elsewhere the config, and
    the names and sizes of the files: models that were trained from one base to the same sizes are
    not told apart. Their forwards take as long; a depth that was tuned for one holds for all.
    """
    manifest = folder / MANIFEST
    if manifest.is_file():
        return {"manifest": sha256(manifest)}
    weights = sorted((file.name, file.stat().st_size) for file in folder.glob("*.safetensors"))
    config = folder / "config.json"
    return {"config": sha256(config) if config.is_file() else "", "weights": json.dumps(weights)}


def recall(key: str, now: float | None = None) -> tuple[Measured | None, str | None]:
    """What is kept under a key, with its tuning.

    Parameters
    ----------
    now
        Unix time; None reads the clock.

    Returns
    -------
    measured
        None where it has to be measured anew.
    reason
        Why, in a clause; None where it was found.
    """
    found, reason = _read(_costs_file, _costs_of, key, now)
    return None if found is None else replace(found, tuned=recall_tuned(key, now)), reason


def recall_tuned(key: str, now: float | None = None) -> Tuned | None:
    """The tuning that is kept under a key, with or without a measurement; None if there is none."""
    return _read(_tuned_file, _tuned_of, key, now)[0]


def keep(key: str, measured: Measured) -> str | None:
    """Keep a measurement for later loads; why that could not be, in a clause.

    A file is there whole or not at all.
    """
    costs = asdict(replace(measured, head=dict(measured.head)))
    del costs["tuned"]
    return _write(_costs_file, key, costs)


def keep_tuned(key: str, tuned: Tuned | None) -> str | None:
    """Keep a tuning for later loads; None forgets it.

    Returns
    -------
    str or None
        Why it could not be done, in a clause.
    """
    if tuned is not None:
        return _write(_tuned_file, key, asdict(tuned))
    try:
        _tuned_file(key).unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        return f"it cannot be removed ({_line(error)})"
    return None


def recall_lanes(key: str, now: float | None = None) -> Lanes | None:
    """What several rows cost, as kept under a key; None if nothing is."""
    return _read(_lanes_file, _lanes_of, key, now)[0]


def keep_lanes(key: str, lanes: Lanes) -> str | None:
    """Keep what several rows cost, beside what one does; why that could not be, in a clause."""
    return _write(_lanes_file, key, asdict(lanes))


def count() -> int:
    """How many measurements are kept."""
    try:
        return sum(1 for file in _folder().glob("*.json") if file.suffixes == [".json"])
    except (OSError, RuntimeError):
        return 0


def processor() -> str:
    """The processor's model, as it names itself."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _folder() -> Path:
    return cache_dir() / FOLDER


def _costs_file(key: str) -> Path:
    return _folder() / f"{key}.json"


def _tuned_file(key: str) -> Path:
    return _folder() / f"{key}.tuned.json"


def _lanes_file(key: str) -> Path:
    return _folder() / f"{key}.lanes.json"


def _read(
    place: Callable[[str], Path],
    make: Callable[[Mapping[str, Any]], Kept],
    key: str,
    now: float | None,
) -> tuple[Kept | None, str | None]:
    """A file's content, unless it is too old, or why there is none."""
    try:
        kept = make(json.loads(place(key).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None, "nothing was measured here before"
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None, "the cached file is damaged"
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder of nobody
        return None, f"the cache cannot be read ({_line(error)})"
    age = (time.time() if now is None else now) - kept.when
    if not 0 <= age <= LONGEST_AGE_S:
        return None, f"the cached one is of {_date(kept.when)}"
    return kept, None


def _write(place: Callable[[str], Path], key: str, content: Mapping[str, Any]) -> str | None:
    temporary = None
    try:
        target = place(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=".", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(json.dumps(content, indent=1) + "\n")
        os.replace(temporary, target)
    except (OSError, RuntimeError) as error:
        return f"it cannot be kept ({_line(error)})"
    else:
        temporary = None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return None


def _costs_of(content: Mapping[str, Any]) -> Measured:
    """A kept measurement; ValueError unless it is one that this machine can have made."""
    threads, most = content["threads"], max(available_cpus(), pinned_threads() or 1)
    found = Measured(
        tokens=tuple(_whole(n, 1, 2**20) for n in content["tokens"]),
        seconds=tuple(_number(s, LONGEST_S) for s in content["seconds"]),
        head=_parts_of(content["head"]),
        threads=None if threads is None else _whole(threads, 1, most),
        when=_number(content["when"], LATEST),
    )
    (before, last), (shorter, longer) = found.seconds[-2:], found.tokens[-2:]
    slope = (last - before) / (longer - shorter)
    if last + slope * max(0, LONGEST_BLOCK - longer) <= 0:
        raise ValueError("longer blocks would cost nothing")
    return found


def _tuned_of(content: Mapping[str, Any]) -> Tuned:
    depth = content["depth"]
    return Tuned(
        None if depth is None else _whole(depth, 0, DEEPEST), _number(content["when"], LATEST)
    )


def _lanes_of(content: Mapping[str, Any]) -> Lanes:
    position = content["position"]
    return Lanes(
        tokens=tuple(_whole(n, 1, 2**20) for n in content["tokens"]),
        seconds={
            _whole(int(rows), 2, MOST_ROWS): tuple(_number(s, LONGEST_S) for s in seconds)
            for rows, seconds in content["seconds"].items()
        },
        head={int(rows): _parts_of(parts) for rows, parts in content["head"].items()},
        position=0.0 if position == 0 else _number(position, LONGEST_S),
        when=_number(content["when"], LATEST),
    )


def _parts_of(content: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): _number(s, LONGEST_S) for name, s in content.items()}


def _whole(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"a whole number from {least} to {most} was kept, unlike {value!r}")
    return value


def _number(value: object, most: float) -> float:
    if type(value) not in (int, float) or not 0 < value <= most:  # type: ignore[operator]
        raise ValueError(f"a number above 0 up to {most:g} was kept, unlike {value!r}")
    return float(value)  # type: ignore[arg-type]


def _date(when: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(when))


def _gpu_name() -> str:
    import mlx.core as mx

    return str(mx.device_info().get("device_name", "gpu"))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
