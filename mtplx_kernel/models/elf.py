"""Read from a 64-bit ELF library through which pointers it calls the functions of other libraries.

A fresh machine has no `readelf`, and no more of the format is read here than this one question
needs. Layout after the System V ABI (Elf64_Ehdr, Elf64_Shdr, Elf64_Sym, Elf64_Rela).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SHT_RELA = 4
_SHT_DYNSYM = 11
_SLOT_TYPES = (6, 7, 1025, 1026)  # GLOB_DAT and JUMP_SLOT, of x86-64 and of AArch64


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF library with section headers."""


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def read_slots(path: Path) -> dict[str, int]:
    """Find the pointers that the linker fills with the addresses of imported functions.

    Parameters
    ----------
    path
        The library.

    Returns
    -------
    dict[str, int]
        For each name, the address of its pointer relative to the library's load address.

    Raises
    ------
    NotElf
        When the file is of another format, or damaged.
    OSError
        When it cannot be read.
    """
    data = path.read_bytes()
    try:
        return _slots(data)
    except (struct.error, IndexError, OverflowError, ValueError) as err:
        raise NotElf(f"{path} is not a readable 64-bit ELF library: {err}") from err


def _slots(data: bytes) -> dict[str, int]:
    if not data.startswith(_MAGIC):
        raise ValueError("wrong magic number")
    sections = _sections(data)
    table = next((section for section in sections if section.kind == _SHT_DYNSYM), None)
    if table is None:
        raise ValueError("no dynamic symbol table")
    strings = _body(data, sections[table.link])
    names = [
        _string(strings, symbol[0]) for symbol in struct.iter_unpack("<IBBHQQ", _body(data, table))
    ]
    slots = {}
    for section in sections:
        if section.kind == _SHT_RELA:
            for address, info, _addend in struct.iter_unpack("<QQq", _body(data, section)):
                if info & 0xFFFFFFFF in _SLOT_TYPES:
                    slots[names[info >> 32]] = address
    return slots


def _sections(data: bytes) -> list[_Section]:
    (table_at,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = []
    for index in range(count):
        _name, kind, _flags, _address, offset, size, link = struct.unpack_from(
            "<IIQQQQI", data, table_at + entry_size * index
        )
        sections.append(_Section(kind, offset, size, link))
    return sections


def _body(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()
