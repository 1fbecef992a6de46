"""Find an OpenBLAS on this machine, load it privately, and set its threads."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

WHEEL = "scipy-openblas32"


class OpenBlasMissing(RuntimeError):
    """No OpenBLAS can be had here; the message says what is missing, in a clause."""


@dataclass(frozen=True)
class LibraryFile:
    """Where an OpenBLAS is, and what its builders put in front of every name."""

    path: Path
    prefix: str


def find_library(conda_prefix: Path = Path(sys.prefix)) -> LibraryFile:
    """Find the OpenBLAS of the `cpu` extra, else that of a conda environment.

    Raises
    ------
    OpenBlasMissing
        When there is neither.
    """
    spec = importlib.util.find_spec(WHEEL.replace("-", "_"))
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place, "lib").glob("libscipy_openblas.so")):
            return LibraryFile(path, "scipy_")
    path = conda_prefix / "lib" / "libopenblas.so"
    if path.exists():
        return LibraryFile(path, "")
    raise OpenBlasMissing(f"the package {WHEEL} is not installed")


class OpenBlas:
    """A loaded OpenBLAS: its name, its functions' addresses and its number of threads.

    Its names stay private to it, so that it hides nothing of the OpenBLAS that NumPy or SciPy bring
    for themselves.

    Raises
    ------
    OpenBlasMissing
        When the file cannot be loaded, or is no OpenBLAS.
    """

    def __init__(self, file: LibraryFile) -> None:
        self.path = file.path
        self._prefix = file.prefix
        try:
            self._handle = ctypes.CDLL(str(file.path), mode=ctypes.RTLD_LOCAL)
            self._set_threads = self._handle[f"{file.prefix}openblas_set_num_threads"]
            self._get_threads = self._handle[f"{file.prefix}openblas_get_num_threads"]
            config = self._handle[f"{file.prefix}openblas_get_config"]
            core = self._handle[f"{file.prefix}openblas_get_corename"]
        except (OSError, AttributeError) as err:
            raise OpenBlasMissing(f"{file.path.name} cannot be used: {err}") from err
        config.restype = core.restype = ctypes.c_char_p
        version = ".".join(config().decode().split()[1].split(".")[:3])
        self.name = f"OpenBLAS {version} {core().decode()}"

    def address_of(self, name: str) -> int | None:
        """The address of a BLAS or LAPACK function, or None when it has none of that name."""
        try:
            function = self._handle[self._prefix + name]
        except AttributeError:
            return None
        return ctypes.cast(function, ctypes.c_void_p).value

    @property
    def threads(self) -> int:
        """Threads that a product may use."""
        return int(self._get_threads())

    @threads.setter
    def threads(self, count: int) -> None:
        self._set_threads(count)
