"""Whose BLAS MLX calls in this process, and how to give it another one (Linux).

libmlx calls BLAS and LAPACK through pointers in its own offset table. Python loads extension
modules with immediate binding, so those pointers are filled at `import mlx.core`: a library loaded
later, even one whose names are global, is never asked. Writing the pointers is therefore the one
way that works whatever was imported first, and reading them says whose code runs, without a timing
and without a product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mtplx_kernel.models.elf import NotElf, read_slots

PRODUCT = "cblas_sgemm"


class BindingUnknown(RuntimeError):
    """MLX's pointers could not be read or written; the message says why, in a clause."""


@dataclass(frozen=True)
class _Mapping:
    """One line of /proc/self/maps: a range of addresses, and the file behind it."""

    start: int
    end: int
    writable: bool
    offset: int
    path: str


def bound_library() -> Path | None:
    """The file whose `cblas_sgemm` MLX calls, or None while the linker has not bound it.

    `mlx.core` must be imported.

    Raises
    ------
    BindingUnknown
        When libmlx is not loaded, cannot be read, or has no such pointer.
    """
    mappings = _mappings()
    libmlx, slots = _libmlx(mappings)
    if PRODUCT not in slots:
        raise BindingUnknown(f"libmlx does not call {PRODUCT}")
    target = _pointer(libmlx.start + slots[PRODUCT]).value
    owner = _owner(mappings, target)
    return None if owner is None or owner == libmlx.path else Path(owner)


def redirect(library: Path, address_of: Callable[[str], int | None]) -> tuple[str, ...]:
    """Point MLX's calls to other code; calls that are already running end where they are.

    Parameters
    ----------
    library
        The file of the new code, already loaded. What it does not hold itself is left alone: looked
        up through it, a name like `memcpy` leads to a library that it depends on.
    address_of
        The address of the new code for a function's name, or None to leave that function alone.

    Returns
    -------
    tuple[str, ...]
        The names of the functions that were redirected, sorted.

    Raises
    ------
    BindingUnknown
        When libmlx is not loaded, cannot be read, or keeps its pointers in read-only memory.
        Nothing has changed then.
    """
    mappings = _mappings()
    libmlx, slots = _libmlx(mappings)
    file = str(library.resolve())
    found = {name: address_of(name) for name in slots}
    changes = {
        name: address
        for name, address in found.items()
        if address is not None and _owner(mappings, address) == file
    }
    for name in changes:
        place = libmlx.start + slots[name]
        if not any(m.writable and m.start <= place < m.end for m in mappings):
            raise BindingUnknown("libmlx keeps its BLAS pointers in read-only memory")
    for name, address in changes.items():
        _pointer(libmlx.start + slots[name]).value = address
    return tuple(sorted(changes))


def _libmlx(mappings: list[_Mapping]) -> tuple[_Mapping, dict[str, int]]:
    """The first mapping of libmlx, whose start is its load address, and its slots."""
    for mapping in mappings:
        if Path(mapping.path).name.startswith("libmlx.so") and mapping.offset == 0:
            try:
                return mapping, read_slots(Path(mapping.path))
            except (OSError, NotElf) as err:
                raise BindingUnknown(f"libmlx cannot be read: {err}") from err
    raise BindingUnknown("no libmlx is loaded in this process")


def _pointer(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(address)


def _mappings() -> list[_Mapping]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            found.append(_Mapping(start, end, "w" in fields[1], int(fields[2], 16), fields[5]))
    return found


def _owner(mappings: list[_Mapping], address: int) -> str | None:
    """The file whose mapping holds an address."""
    return next((m.path for m in mappings if m.start <= address < m.end), None)
