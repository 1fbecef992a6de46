"""What tells weight files from others of the same names and sizes, without reading all of them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

WHOLE = 16 * 2**20
"""Files up to this size are read whole."""
PIECE = 16 * 2**10
"""Of larger ones, so many bytes of each tensor: all of a norm, the beginning of a matrix."""


def content_digest(files: Iterable[Path]) -> str:
    """A digest of safetensors files that training one of their tensors anew changes.

    Parameters
    ----------
    files
        In the order that counts; their names and places do not.

    Returns
    -------
    str
        16 hexadecimal digits.

    Raises
    ------
    OSError, ValueError
        If a file cannot be read, or a large one is no safetensors file.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(struct.pack("<Q", size))
        with path.open("rb") as file:
            for piece in [file.read()] if size <= WHOLE else _pieces(file):
                digest.update(piece)
    return digest.hexdigest()[:16]


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """The header, then the beginning of each tensor in the order of the file."""
    (length,) = struct.unpack("<Q", file.read(8))
    header = file.read(length)
    yield header
    entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
    for start, end in sorted(entry["data_offsets"] for entry in entries.values()):
        file.seek(8 + length + start)
        yield file.read(min(PIECE, end - start))
