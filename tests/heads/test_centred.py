"""Whether a head's norms lack 1: told by their values, by the files' writer, by the layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtplx_kernel.errors import ModelUnusable
from tests.heads.folders import converted, flat, follows, with_one
from tests.heads.oracle import mimo, qwen, step3p5
from tests.heads.published import Array, Published, Tensors, open_head, save

PT, MLX = {"format": "pt"}, {"format": "mlx"}
NORM = "mtp.norm.weight"


def never_negative(published: Published) -> Published:
    """With norms whose values tell nothing."""
    raised = {n: np.abs(a) if "norm" in n else a for n, a in published.head.items()}
    return dataclasses.replace(published, head=raised)


def norm_of(folder: Path) -> Array:
    """Of the head, or of the first where there are several."""
    parameters = flat(open_head(folder)[1])
    return np.array(parameters.get("norm.weight", parameters.get("heads.0.norm.weight")))


def bare(head: Tensors) -> Tensors:
    return {n.removeprefix("mtp."): a for n, a in head.items()}


@pytest.mark.parametrize("notes", [{}, MLX])
def test_a_sidecar_with_bare_names_holds_whole_norms(tmp_path: Path, notes: dict[str, str]) -> None:
    published = qwen.mixture(in_one=False)
    folder = dataclasses.replace(published, head={}).write(tmp_path)
    save(folder / "mtp.safetensors", bare(with_one(published.head)), notes)
    follows(folder, published, published.head)


def test_a_published_file_beside_a_converted_model(tmp_path: Path) -> None:
    """Its name makes it one of the model's own, whose layout says that 1 is there."""
    published = never_negative(qwen.dense())
    folder = converted(published, tmp_path, {})
    save(folder / "model-mtp.safetensors", published.head, PT)
    np.testing.assert_array_equal(norm_of(folder), published.head[NORM] + 1)
    follows(folder, published, published.head)


def test_a_converters_sidecar_with_published_names(tmp_path: Path) -> None:
    published = never_negative(qwen.dense())
    folder = converted(published, tmp_path, {})
    save(folder / "mtp.safetensors", with_one(published.head), MLX)
    np.testing.assert_array_equal(norm_of(folder), published.head[NORM] + 1)
    follows(folder, published, published.head)


def test_a_writer_of_torch_is_believed_whatever_the_names(tmp_path: Path) -> None:
    published = never_negative(qwen.dense())
    folder = converted(published, tmp_path, {})
    save(folder / "mtp.safetensors", bare(published.head), PT)
    follows(folder, published, published.head)


@pytest.mark.parametrize(
    ("make", "name", "prefix"),
    [
        (qwen.dense, NORM, "language_model."),
        (qwen.next_one, NORM, ""),
        (step3p5.published, f"{step3p5.LAYER}.shared_head.norm.weight", ""),
    ],
)
@pytest.mark.parametrize("noted", [True, False])
def test_norms_that_lack_one_are_told_by_the_layout_of_the_model(
    tmp_path: Path, make: Callable[[], Published], name: str, prefix: str, noted: bool
) -> None:
    """Where neither values nor a note tell, the rule is the one that mlx-lm has for the target."""
    published = never_negative(make())
    original = dataclasses.replace(published, metadata=PT if noted else {})
    np.testing.assert_array_equal(
        norm_of(original.write(tmp_path / "published")), published.head[name] + 1
    )
    kept = {f"{prefix}{n}": a for n, a in published.head.items()}
    folder = converted(published, tmp_path, kept, MLX if noted else {})
    np.testing.assert_array_equal(norm_of(folder), published.head[name])


def test_a_converted_folder_with_norms_as_published(tmp_path: Path) -> None:
    """A gain that is negative on average cannot be meant: 1 is added whatever the folder is."""
    published = qwen.dense()
    kept = {f"language_model.{n}": a for n, a in published.head.items()}
    follows(converted(published, tmp_path, kept), published, published.head)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    published = mimo.published()
    published.head["model.mtp_layers.0.hidden_layernorm.weight"][5] = value
    with pytest.raises(ModelUnusable) as caught:
        open_head(published.write(tmp_path))
    assert str(caught.value) == (
        "the mimo head in model.safetensors is damaged: hnorm.weight must be finite numbers; "
        "fetch or convert it anew"
    )
