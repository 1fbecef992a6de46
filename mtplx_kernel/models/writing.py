"""Write an mlx-lm model folder: shards, config, tokenizer and licence files, a card, one rename."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mtplx_kernel.errors import InvalidRequest, ModelUnusable
from mtplx_kernel.models.catalog import cache_dir
from mtplx_kernel.models.manifest import MANIFEST

if TYPE_CHECKING:
    import mlx.core as mx

_COMPANIONS = (
    *("*.json", "*.jsonl", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py"),
    *("LICEN[CS]E*", "NOTICE*", "COPYING*", "USE_POLICY*"),
)
_OF_THE_SOURCE_ONLY = re.compile(
    rf"config\.json|hf_quant_config\.json|{re.escape(MANIFEST)}|.*\.index\.json"
)
_TEMPLATES = "additional_chat_templates"
_CARD = "README.md"
_MARGIN_BYTES = 16 << 20


def check_free(destination: Path) -> None:
    """Refuse a destination that holds anything.

    Raises
    ------
    InvalidRequest
        If it exists and is not an empty folder.
    """
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if destination.exists() or destination.is_symlink():
        raise InvalidRequest(
            f"{destination} exists and is not an empty folder; name a new one or remove it first"
        )


@contextmanager
def scratch(destination: Path) -> Iterator[Path]:
    """Give a folder to work in, and put it in the destination's place when all went well.

    It lies beside the destination; what a killed writer left of it is swept by the next. Its lock
    lies in the cache, so that nothing but the model is left here.

    Raises
    ------
    InvalidRequest
        If another process is writing the same destination.
    """
    import filelock

    locks = cache_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(locks / hashlib.sha256(os.fsencode(destination)).hexdigest()[:16])
    folder = destination.parent / f".{destination.name}.unfinished"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as err:
        raise InvalidRequest(
            f"{destination} is being written by another process; wait for it or name another folder"
        ) from err
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
        os.rename(folder, destination)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def check_room(folder: Path, needed: int) -> None:
    """Refuse to start what cannot end.

    Raises
    ------
    ModelUnusable
        If the disk of `folder` has fewer than `needed` bytes to spare.
    """
    free = shutil.disk_usage(folder).free
    if free < needed + _MARGIN_BYTES:
        raise ModelUnusable(
            f"the converted model takes {needed / 1e9:.2f} GB and {folder.parent} has"
            f" {free / 1e9:.2f} GB free; make room or choose another disk"
        )


def companions(source: Path) -> list[Path]:
    """The files of a model folder that go with its weights whatever these become."""
    found = {path for pattern in _COMPANIONS for path in source.glob(pattern)}
    found |= set(source.glob(f"{_TEMPLATES}/*.jinja"))
    return sorted(p for p in found if p.is_file() and not _OF_THE_SOURCE_ONLY.fullmatch(p.name))


def copy_files(paths: Iterable[Path], source: Path, folder: Path) -> None:
    """Copy files of `source` byte for byte; the links of a hub's cache become files."""
    for path in paths:
        place = folder / path.relative_to(source)
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, place)


def write_shards(
    folder: Path, weights: dict[str, mx.array], parameters: int, tick: Callable[[int], object]
) -> None:
    """Write `model*.safetensors` and their index as mlx-lm does.

    Parameters
    ----------
    folder
        Where to.
    weights
        By name, not evaluated yet. It is emptied: each shard is computed, written and dropped.
    parameters
        How many numbers they stand for, for the index.
    tick
        Called with the bytes of each array once it is computed.
    """
    import mlx.core as mx
    from mlx_lm.utils import make_shards

    shards = make_shards(weights)
    sizes = {"total_size": sum(a.nbytes for a in weights.values()), "total_parameters": parameters}
    weights.clear()
    places: dict[str, str] = {}
    count = len(shards)
    for number in range(1, count + 1):
        shard = shards.pop(0)
        name = (
            f"model-{number:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"
        )
        for array in shard.values():
            mx.eval(array)
            tick(array.nbytes)
        mx.save_safetensors(str(folder / name), shard, {"format": "mlx"})
        places |= dict.fromkeys(shard, name)
    index = {"metadata": sizes, "weight_map": dict(sorted(places.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))


def write_card(source: Path, folder: Path, note: str) -> None:
    """Write README.md: the source's own, its metadata first, with a note at its beginning."""
    card = source / _CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    metadata = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    front = metadata.group() if metadata else "---\nlibrary_name: mlx\n---\n"
    rest = text[metadata.end() :] if metadata else text
    parts = [front, note.strip(), *([rest.strip()] if rest.strip() else [])]
    (folder / _CARD).write_text("\n\n".join(part.rstrip() for part in parts) + "\n", "utf-8")
