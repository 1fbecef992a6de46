"""What lies beside a head's tensors: distilled heads, indexes old and whole, files not fetched."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.checkpoint import head_files, load_native, save_native
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig
from mtplx_kernel.heads.distilled_file import load_distilled, save_distilled
from mtplx_kernel.models.target import Target
from tests.heads.folders import follows
from tests.heads.oracle import mimo, qwen
from tests.heads.published import HIDDEN, VOCABULARY, Published, open_head, save

CONFIG = HeadConfig(HIDDEN, VOCABULARY, 2, (0, "final"), 4, 2, 16, 96)


def save_a_distilled_head(path: Path, target: Target, family: str | None = "distilled") -> None:
    """As it is written now, or (family None) as the first version wrote it."""
    head = DistilledHead(CONFIG, target.shared, mx.array([3, 1, 4], mx.int32))
    assert target.final_norm is not None
    save_distilled(path, head, target.final_norm)
    if family is None:
        tensors, notes = mx.load(str(path), return_metadata=True)
        mx.eval(tensors)
        del notes["family"]
        mx.save_safetensors(str(path), tensors, notes)


def read_distilled(path: Path, target: Target) -> DistilledHead:
    norm = target.final_norm
    assert norm is not None
    return load_distilled(
        path,
        shared=target.shared,
        base_norm=norm,
        hidden=HIDDEN,
        vocabulary=VOCABULARY,
        layers=2,
    )


@pytest.mark.parametrize("family", ["distilled", None])
@pytest.mark.parametrize("name", ["head.safetensors", "mtp.safetensors", "mtp/head.safetensors"])
def test_a_distilled_head_is_no_checkpoints_own(
    tmp_path: Path, name: str, family: str | None
) -> None:
    published = qwen.dense()
    target, _ = open_head(published.write(tmp_path / "own"))
    own = tmp_path / "own"
    bare = dataclasses.replace(published, head={}).write(tmp_path / "bare")
    for folder in (own, bare):
        (folder / name).parent.mkdir(exist_ok=True)
        save_a_distilled_head(folder / name, target, family)
    assert head_files(bare, published.config) == []
    assert head_files(own, published.config) == [own / "model.safetensors"]
    follows(own, published, published.head)
    assert read_distilled(bare / name, target).vocabulary.tolist() == [3, 1, 4]


def test_a_distilled_head_beside_one_that_was_converted(tmp_path: Path) -> None:
    published = qwen.dense()
    target, native = open_head(published.write(tmp_path))
    save_a_distilled_head(tmp_path / "head.safetensors", target)
    save_native(native, tmp_path / "mtp.safetensors")
    assert head_files(tmp_path, published.config) == [tmp_path / "mtp.safetensors"]
    follows(tmp_path, published, published.head)


def test_a_checkpoints_own_head_is_not_a_distilled_one(tmp_path: Path) -> None:
    target, native = open_head(qwen.dense().write(tmp_path))
    save_native(native, tmp_path / "mtp.safetensors")
    with pytest.raises(ModelUnusable, match=r"mtp\.safetensors is not a distilled head"):
        read_distilled(tmp_path / "mtp.safetensors", target)


def write_index(folder: Path, name: str, published: Published, file: str) -> None:
    places = {"weight_map": dict.fromkeys(published.head, file)}
    (folder / name).write_text(json.dumps(places))


def test_an_index_of_files_that_are_not_read_says_nothing(tmp_path: Path) -> None:
    published = qwen.dense()
    folder = published.write(tmp_path)
    write_index(folder, "pytorch_model.bin.index.json", published, "pytorch_model-2.bin")
    follows(folder, published, published.head)
    bare = dataclasses.replace(published, head={}).write(folder / "bare")
    write_index(bare, "pytorch_model.bin.index.json", published, "pytorch_model-2.bin")
    assert head_files(bare, published.config) == []


@pytest.mark.parametrize("sidecar", [None, "mtp.safetensors"])
def test_an_old_index_whose_tensors_are_elsewhere(tmp_path: Path, sidecar: str | None) -> None:
    published = qwen.dense()
    folder = published.write(tmp_path, sidecar=sidecar)
    write_index(folder, "model.safetensors.index.json", published, "model-00009-of-00009.x")
    follows(folder, published, published.head)


def test_a_sidecar_that_holds_what_an_index_names_otherwise(tmp_path: Path) -> None:
    published = qwen.dense()
    folder = dataclasses.replace(published, head={}).write(tmp_path)
    write_index(folder, "model.safetensors.index.json", published, "model-2.safetensors")
    with pytest.raises(ModelUnusable, match=r"in model-2\.safetensors, which is missing"):
        head_files(folder, published.config)
    bare = {n.removeprefix("mtp."): a for n, a in published.head.items()}
    save(folder / "mtp.safetensors", bare, {"format": "pt"})
    follows(folder, published, published.head)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}', "[]"])
def test_a_damaged_index_is_refused(tmp_path: Path, text: str) -> None:
    published = mimo.published()
    folder = published.write(tmp_path)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelUnusable, match=r"model\.safetensors\.index\.json is damaged"):
        head_files(folder, published.config)


@pytest.mark.parametrize("lazy", [True, False])
def test_lazily_loaded_tensors_stay_in_the_file(tmp_path: Path, lazy: bool) -> None:
    """The file is cut after the load: only what had been read is there."""
    published = qwen.dense()
    folder = published.write(tmp_path, sidecar="mtp.safetensors")
    target, _ = open_head(folder)
    shared: Shared = target.shared
    head = load_native(
        folder, published.config, shared=shared, hidden=HIDDEN, vocabulary=VOCABULARY, lazy=lazy
    )
    assert head is not None
    whole = (folder / "mtp.safetensors").read_bytes()
    with (folder / "mtp.safetensors").open("r+b") as file:
        file.truncate(8)
    assert len(whole) > 100_000
    mx.eval(head.norm.weight)
    if lazy:
        with pytest.raises(RuntimeError):
            mx.eval(head.fc.weight)
    else:
        assert mx.array_equal(head.fc.weight, mx.array(published.head["mtp.fc.weight"])).item()
