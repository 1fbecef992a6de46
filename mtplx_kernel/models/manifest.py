"""The list of a model folder's files: written last, it says that the folder is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

MANIFEST = "mtplx_manifest.json"


def write_manifest(folder: Path, source: str) -> None:
    """Describe every file of `folder`, which came from `source`."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    text = json.dumps({"source": source, "files": files}, indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def damage(folder: Path, hashes: bool = True, source: str | None = None) -> str | None:
    """Say what is wrong with a folder, in a clause, or None when it is as it was made.

    Parameters
    ----------
    folder
        The model folder.
    hashes
        Whether to read every byte (a few tenths of a second for 100 MB); sizes are always compared.
    source
        What it must have been made from, when that matters.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {
            str(name): (int(f["size"]), str(f["sha256"])) for name, f in content["files"].items()
        }
        made_from = content["source"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    if source is not None and made_from != source:
        return f"it was made from {made_from}"
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if hashes and sha256(path) != digest:
            return f"{name} has changed"
    return None


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
