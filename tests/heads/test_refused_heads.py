"""Heads that cannot be used: none at all, damaged, incomplete, or of another model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
import pytest

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.checkpoint import head_files, holds_head, load_native, save_native
from mtplx_kernel.heads.families import classes_without_head
from mtplx_kernel.heads.native import NativeHead
from tests.heads.oracle import exaone_moe, mimo, qwen
from tests.heads.published import HIDDEN, VOCABULARY, open_head


def load(folder: Path, config: dict[str, Any], hidden: int = HIDDEN) -> NativeHead | None:
    output = nn.Linear(hidden, VOCABULARY, bias=False)
    shared = Shared(embed=nn.Embedding(VOCABULARY, hidden), logits=output, output=output)
    return load_native(folder, config, shared=shared, hidden=hidden, vocabulary=VOCABULARY)


def refusal(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(ModelUnusable) as caught:
        load(folder, config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_head_whatever_the_config_says(tmp_path: Path) -> None:
    published = dataclasses.replace(mimo.published(), head={})
    assert published.config["num_nextn_predict_layers"] == 1
    folder = published.write(tmp_path)
    assert not holds_head(folder, published.config)
    assert load(folder, published.config) is None


def test_a_family_without_heads(tmp_path: Path) -> None:
    published = mimo.published()
    config = {**published.config, "model_type": "llama"}
    folder = dataclasses.replace(published, config=config).write(tmp_path)
    assert head_files(folder, config) == []
    assert load(folder, config) is None
    assert classes_without_head(config)[0].__module__ == "mlx_lm.models.llama"


def test_a_missing_tensor(tmp_path: Path) -> None:
    published = mimo.published()
    del published.head["model.mtp_layers.0.mlp.up_proj.weight"]
    message = refusal(published.write(tmp_path), published.config)
    assert "the mimo head in model.safetensors lacks layers.0.mlp.up_proj.weight" in message


def test_a_missing_expert(tmp_path: Path) -> None:
    published = qwen.mixture(in_one=False)
    del published.head["mtp.layers.0.mlp.experts.2.up_proj.weight"]
    message = refusal(published.write(tmp_path), published.config)
    assert "mlp.experts.3.up_proj.weight" in message or "mlp.switch_mlp.up_proj" in message


def test_a_config_that_says_too_little(tmp_path: Path) -> None:
    published = exaone_moe.published()
    folder = published.write(tmp_path)
    config = {n: v for n, v in published.config.items() if n != "head_dim"}
    assert "does not go with the model's config: TypeError" in refusal(folder, config)


def test_quantised_in_an_unknown_way(tmp_path: Path) -> None:
    published = mimo.published()
    name = "model.mtp_layers.0.input_proj"
    published.head[f"{name}.scales"] = np.zeros((HIDDEN, 5), np.uint8)
    message = refusal(published.write(tmp_path), published.config)
    assert "is quantised in an unknown way" in message


def test_an_unknown_tensor(tmp_path: Path) -> None:
    published = exaone_moe.published()
    published.head["mtp.layers.0.self_attn.sinks"] = np.zeros(4, np.float32)
    message = refusal(published.write(tmp_path), published.config)
    assert "holds layers.0.self_attn.sinks, which this family does not have" in message


def test_the_head_of_a_wider_model(tmp_path: Path) -> None:
    published = mimo.published()
    name = "model.mtp_layers.0.mlp.up_proj.weight"
    published.head[name] = np.concatenate([published.head[name]] * 2)
    message = refusal(published.write(tmp_path), published.config)
    assert "layers.0.mlp.up_proj.weight has shape (192, 64), the model needs (96, 64)" in message


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    published = mimo.published()
    folder = published.write(tmp_path, sidecar="mtp.safetensors")
    whole = (folder / "mtp.safetensors").read_bytes()
    for size in (4, 100, len(whole) - 1):
        (folder / "mtp.safetensors").write_bytes(whole[:size])
        assert "mtp.safetensors is damaged" in refusal(folder, published.config)
    (folder / "mtp.safetensors").write_bytes(b"\x10" + b"\0" * 7 + b"not a header, no")
    assert "mtp.safetensors is damaged" in refusal(folder, published.config)


def test_a_file_that_was_not_fetched(tmp_path: Path) -> None:
    published = mimo.published()
    folder = dataclasses.replace(published, head={}).write(tmp_path)
    places = {"weight_map": dict.fromkeys(published.head, "model-mtp.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(places))
    message = refusal(folder, published.config)
    assert "in model-mtp.safetensors, which is missing" in message


def test_a_converted_head_of_another_family(tmp_path: Path) -> None:
    _, head = open_head(mimo.published().write(tmp_path / "mimo"))
    published = exaone_moe.published()
    folder = dataclasses.replace(published, head={}).write(tmp_path / "exaone")
    save_native(head, folder / "mtp.safetensors")
    message = refusal(folder, published.config)
    assert "holds a head of family mimo, version 1; this model takes exaone_moe" in message
