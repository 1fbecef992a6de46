"""Finding and reading heads: every place and form that they come in, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.utils import load_model

from mtplx_kernel.heads.checkpoint import head_files, load_native, save_native
from mtplx_kernel.heads.families import classes_without_head
from mtplx_kernel.models.target import Target
from tests.heads.agreement import assert_follows, prompt
from tests.heads.folders import EMBEDDING, converted, flat, follows, with_one
from tests.heads.oracle import exaone_moe, mimo, qwen
from tests.heads.published import HIDDEN, VOCABULARY, Published, Tensors, open_head, save


def renamed(published: Published, old: str, new: str) -> Published:
    head = {n.replace(old, new, 1): a for n, a in published.head.items()}
    return dataclasses.replace(published, head=head)


@pytest.mark.parametrize("prefix", ["language_model.", "model.", "model.language_model."])
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    published = qwen.dense()
    folder = renamed(published, "mtp.", f"{prefix}mtp.").write(tmp_path)
    follows(folder, published, published.head)


@pytest.mark.parametrize(
    "name", ["mtp.safetensors", "qwen-mtp.safetensors", "mtp/model.safetensors"]
)
def test_a_sidecar_as_published(tmp_path: Path, name: str) -> None:
    published = qwen.dense()
    folder = published.write(tmp_path, sidecar=name)
    assert head_files(folder, published.config) == [folder / name]
    follows(folder, published, published.head)


def test_a_folder_that_holds_a_head_alone(tmp_path: Path) -> None:
    """As converters of Qwen heads write it: bare names, whole norms, a config of its own."""
    published = qwen.dense()
    base = dataclasses.replace(published, head={}).write(tmp_path / "base")
    model, config = load_model(base, get_model_classes=classes_without_head)
    target = Target(model)
    bare = {n.removeprefix("mtp."): a for n, a in with_one(published.head).items()}
    notes = {"format": "mlx"}
    alone = Published({"model_type": "qwen3_5_mtp"}, {}, bare, notes).write(tmp_path / "alone")
    assert head_files(alone, config) == [alone / "model.safetensors"]
    head = load_native(
        alone, config, shared=target.shared, hidden=HIDDEN, vocabulary=target.vocabulary
    )
    assert head is not None
    embedding = published.base[EMBEDDING].astype(np.float64)
    output = published.base["lm_head.weight"].astype(np.float64)
    assert_follows(head, embedding, qwen.states(published.head), lambda y: y @ output.T)


def test_a_model_in_a_folder_named_mtp_has_no_head_by_that(tmp_path: Path) -> None:
    published = dataclasses.replace(qwen.dense(), head={})
    folder = published.write(tmp_path / "mtp")
    assert head_files(folder, published.config) == []


def test_a_sidecar_is_preferred_to_the_models_own_tensors(tmp_path: Path) -> None:
    published = qwen.dense()
    folder = published.write(tmp_path)
    doubled = {n: a * 2 if n == "mtp.fc.weight" else a for n, a in published.head.items()}
    save(folder / "better-mtp.safetensors", doubled, {})
    assert head_files(folder, published.config) == [folder / "better-mtp.safetensors"]
    follows(folder, published, doubled)


def test_a_converted_folder_that_kept_the_head(tmp_path: Path) -> None:
    published = qwen.dense()
    kept = {f"language_model.{n}": a for n, a in with_one(published.head).items()}
    follows(converted(published, tmp_path, kept), published, published.head)


def test_a_converted_qwen3_next_that_kept_the_head(tmp_path: Path) -> None:
    """mlx-lm alone cannot load this folder: its `sanitize` lets the head through."""
    published = qwen.next_one()
    folder = converted(published, tmp_path, with_one(published.head))
    with pytest.raises(ValueError, match="parameters not in model"):
        load_model(folder)
    _, head = open_head(folder)
    embedding = published.base["model.embed_tokens.weight"].astype(np.float64)
    output = published.base["lm_head.weight"].astype(np.float64)
    assert_follows(head, embedding, qwen.states(published.head), lambda y: y @ output.T)


def test_the_target_is_the_same_beside_a_head_and_without_one(tmp_path: Path) -> None:
    published = qwen.mixture(in_one=True)
    beside, _ = load_model(
        published.write(tmp_path / "with"), get_model_classes=classes_without_head
    )
    alone, _ = load_model(dataclasses.replace(published, head={}).write(tmp_path / "without"))
    tokens = mx.array([[5, 4, 3, 2, 1]])
    assert mx.array_equal(beside(tokens), alone(tokens)).item()


def test_an_embedding_of_its_own(tmp_path: Path) -> None:
    published = qwen.dense()
    own = np.random.default_rng(9).standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    config = dict(published.config)
    config["text_config"] = {**config["text_config"], "mtp_use_dedicated_embeddings": True}
    head = published.head | {"mtp.embed_tokens.weight": own}
    folder = dataclasses.replace(published, config=config, head=head).write(tmp_path)
    _, found = open_head(folder)
    output = published.base["lm_head.weight"].astype(np.float64)
    states = qwen.states(published.head)
    assert_follows(found, own.astype(np.float64), states, lambda y: y @ output.T)


def test_a_copy_of_the_targets_embedding_is_not_loaded(tmp_path: Path) -> None:
    published = qwen.dense()
    head = published.head | {"mtp.embed_tokens.weight": np.zeros((VOCABULARY, HIDDEN), np.float32)}
    folder = dataclasses.replace(published, head=head).write(tmp_path)
    assert open_head(folder)[1].embed is None
    follows(folder, published, published.head)


def quantised(head: Tensors) -> tuple[Tensors, Tensors]:
    """Matrices in 4 bits, the projection and router in 8; and what these stand for."""
    packed, meant = dict(head), dict(head)
    for name, array in head.items():
        if array.ndim != 2:
            continue
        bits = 8 if name.endswith(("fc.weight", "mlp.gate.weight")) else 4
        weight, scales, biases = mx.quantize(mx.array(array), 32, bits)
        packed[name] = np.array(weight)
        packed[name.replace(".weight", ".scales")] = np.array(scales)
        packed[name.replace(".weight", ".biases")] = np.array(biases)
        meant[name] = np.array(mx.dequantize(weight, scales, biases, 32, bits))
    return packed, meant


@pytest.mark.parametrize("fused", [True, False])
def test_quantised_matrices_stay_so(tmp_path: Path, fused: bool) -> None:
    published = qwen.mixture(in_one=False)
    packed, meant = quantised(with_one(published.head))
    lacking = {n: a - np.float32("norm" in n) for n, a in meant.items()}
    packed = qwen.fused(packed, qwen.QUANTISED) if fused else packed
    folder = converted(published, tmp_path, {f"language_model.{n}": a for n, a in packed.items()})
    _, head = open_head(folder)
    assert isinstance(head.fc, nn.QuantizedLinear)
    assert head.fc.bits == 8
    experts = head.layers[0].mlp.switch_mlp.gate_proj
    assert (experts.bits, experts.group_size, experts.num_experts) == (4, 32, 4)
    follows(folder, published, lacking)


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    published = qwen.mixture(in_one=True)
    _, head = open_head(published.write(tmp_path))
    head.set_dtype(mx.bfloat16)
    nn.quantize(head, 32, 4, class_predicate=lambda path, _: path.endswith(("up_proj", "fc")))
    save_native(head, tmp_path / "mtp.safetensors")
    _, again = open_head(tmp_path)
    ours, theirs = flat(head), flat(again)
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(ours[n], theirs[n]).item() for n in ours)
    assert {n: a.dtype for n, a in ours.items()} == {n: a.dtype for n, a in theirs.items()}
    assert head_files(tmp_path, published.config) == [tmp_path / "mtp.safetensors"]


def test_a_head_is_not_saved_where_mlx_lm_would_read_it(tmp_path: Path) -> None:
    _, head = open_head(mimo.published().write(tmp_path))
    with pytest.raises(ValueError, match="part of the model"):
        save_native(head, tmp_path / "model-mtp.safetensors")


def test_a_damaged_file_of_another_purpose_does_not_matter(tmp_path: Path) -> None:
    published = mimo.published()
    folder = published.write(tmp_path)
    (folder / "consolidated.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    assert head_files(folder, published.config) == [folder / "model.safetensors"]


def test_on_the_caches_that_the_head_makes(tmp_path: Path) -> None:
    """In one forward or pair by pair, with a window that is shorter than the prompt."""
    _, head = open_head(exaone_moe.published(**exaone_moe.SLIDING).write(tmp_path))
    features, tokens = prompt()
    states, ids = mx.array(features[None].astype(np.float32)), mx.array(tokens[None])
    whole = head.feed(states, ids, head.make_cache())
    cache = head.make_cache()
    steps = [head.feed(states[:, i : i + 1], ids[:, i : i + 1], cache) for i in range(len(tokens))]
    np.testing.assert_allclose(np.array(mx.concatenate(steps, axis=1)), np.array(whole), atol=1e-5)
