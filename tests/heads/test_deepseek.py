"""The heads of DeepSeek V3, V3.2 and GLM-5 against the MTP model of transformers."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.mla import QuantizedMultiLinear

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.checkpoint import load_native, save_native
from mtplx_kernel.heads.deepseek import DEEPSEEK_V3, owns_appended, read, read_appended
from mtplx_kernel.heads.latent import split_latent
from mtplx_kernel.heads.native import NativeHead
from mtplx_kernel.heads.sharing import share_equal_ends
from tests.heads.fixtures.checkpoints import CONFIGS, tensors
from tests.heads.fixtures.harness import (
    assert_ragged,
    assert_reference,
    expected,
    load,
    run,
)

KINDS = ["deepseek_v3", "deepseek_v3_fp8", "deepseek_v32", "glm_moe_dsa"]
FIRST = "model.layers.2"


@pytest.mark.parametrize("kind", KINDS)
def test_as_published(tmp_path: Path, kind: str) -> None:
    _, head = load(kind, tmp_path)
    assert head.family == kind.removesuffix("_fp8")
    assert head.taps == ("final",)
    assert_reference(head, kind, expected(kind))


@pytest.mark.parametrize("kind", ["deepseek_v3", "deepseek_v32"])
def test_rows_of_unlike_lengths(tmp_path: Path, kind: str) -> None:
    _, head = load(kind, tmp_path)
    assert_ragged(head, kind)


def test_the_indexer_hides_all_but_the_chosen_keys(tmp_path: Path) -> None:
    _, sparse = load("deepseek_v32", tmp_path)
    topk = CONFIGS["deepseek_v32"]["index_topk"]
    some, _ = run(sparse, "deepseek_v32")
    sparse.layers[0].self_attn.indexer.index_topk = 64
    everything, _ = run(sparse, "deepseek_v32")
    np.testing.assert_allclose(some[:topk], everything[:topk], rtol=0, atol=1e-5)
    assert np.abs(some[topk:] - everything[topk:]).max() > 0.1


def test_ends_that_repeat_the_models_are_shared(tmp_path: Path) -> None:
    _, head = load("deepseek_v3", tmp_path)
    assert head.embed is None
    assert head.output is None
    assert not [n for n in dict(head.parameters()) if n in ("embed", "output")]
    assert_reference(head, "deepseek_v3", expected("deepseek_v3"))


def test_an_end_that_differs_stays(tmp_path: Path) -> None:
    other = tensors("deepseek_v3")[f"{FIRST}.embed_tokens.weight"].copy()
    other[63, 31] += 1
    _, head = load("deepseek_v3", tmp_path, {f"{FIRST}.embed_tokens.weight": other})
    assert head.output is None
    assert head.embed is not None
    assert head.embed.weight[63, 31].item() == other[63, 31]


@pytest.mark.parametrize("changed", [False, True])
def test_an_output_may_repeat_the_models_embedding(changed: bool) -> None:
    embedding = nn.Embedding(64, 32)
    shared = Shared(embedding, embedding.as_linear, embedding)
    config = CONFIGS["deepseek_v3"]
    head = NativeHead(DEEPSEEK_V3, config, 32, shared, own_output=True, vocabulary=64)
    assert head.output is not None
    head.output.weight = embedding.weight + float(changed)
    share_equal_ends(head, shared)
    assert (head.output is not None) is changed


@pytest.mark.parametrize(
    ("name", "layers", "owned"),
    [
        ("model.layers.61.self_attn.o_proj.weight", 61, True),
        ("model.layers.62.eh_proj.weight", 61, True),
        ("model.layers.60.mlp.gate.weight", 61, False),
        ("model.layers.46.mlp.gate.weight", 47, False),
        ("model.layers.4.enorm.weight", 4, True),
        ("model.layers.40.enorm.weight", 46, False),
        ("model.norm.weight", 2, False),
        ("lm_head.weight", 2, False),
    ],
)
def test_layers_after_the_models_are_the_heads(name: str, layers: int, owned: bool) -> None:
    assert owns_appended(name, {"num_hidden_layers": layers}) is owned


def test_a_second_head_is_left_out(tmp_path: Path) -> None:
    second = {
        name.replace(FIRST, "model.layers.3"): array + 1
        for name, array in tensors("deepseek_v3").items()
        if name.startswith(FIRST)
    }
    _, head = load("deepseek_v3", tmp_path, dict(second))
    assert_reference(head, "deepseek_v3", expected("deepseek_v3"))


def test_the_bias_that_chooses_experts_is_float32() -> None:
    held = {n: mx.array(a).astype(mx.bfloat16) for n, a in tensors("deepseek_v3").items()}
    read = read_appended(
        {n: a for n, a in held.items() if n.startswith(FIRST)}, CONFIGS["deepseek_v3"]
    )
    assert read["layers.0.mlp.gate.e_score_correction_bias"].dtype == mx.float32
    assert read["layers.0.mlp.gate.weight"].dtype == mx.bfloat16
    assert read["layers.0.mlp.switch_mlp.up_proj.weight"].shape == (8, 24, 32)


def test_a_quantised_latent_projection_is_split() -> None:
    mx.random.seed(0)
    whole = mx.random.normal((4 * (10 + 12), 64))
    packed = dict(zip(("weight", "scales", "biases"), mx.quantize(whole, 32, 8), strict=True))
    config = {"num_attention_heads": 4, "qk_nope_head_dim": 10, "kv_lora_rank": 64}
    split = split_latent({f"a.kv_b_proj.{n}": a for n, a in packed.items()}, "a", config)
    assert sorted(split) == ["a.embed_q.weight", "a.unembed_out.weight"]
    heads = np.array(whole).reshape(4, 22, 64)
    step = np.abs(heads).max() / 127
    keys = heads[:, :10].transpose(0, 2, 1)
    np.testing.assert_allclose(np.array(split["a.embed_q.weight"]), keys, atol=step)
    np.testing.assert_allclose(np.array(split["a.unembed_out.weight"]), heads[:, 10:], atol=step)


def test_a_layer_that_mlx_lm_converted_is_read_as_it_is() -> None:
    config = CONFIGS["deepseek_v3"]
    first = {n: mx.array(a) for n, a in tensors("deepseek_v3").items() if n.startswith(FIRST)}
    parameters = read(first, config)
    converted = {
        n.replace("layers.0", FIRST): a for n, a in parameters.items() if n.startswith("layers.0.")
    }
    again = read(converted, config)
    assert sorted(again) == [n for n in sorted(parameters) if n.startswith("layers.0.")]
    assert all(mx.array_equal(again[n], parameters[n]).item() for n in again)


def test_a_quantised_head_comes_back_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "deepseek_v3"
    wide = {"hidden_size": 64, "kv_lora_rank": 32, "q_lora_rank": 32, "moe_intermediate_size": 32}
    wide |= {"intermediate_size": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    monkeypatch.setitem(CONFIGS, kind, CONFIGS[kind] | wide)
    target, head = load(kind, tmp_path)
    nn.quantize(head, 32, 8)
    states, logits = run(head, kind)
    save_native(head, tmp_path / "mtp.safetensors")
    again = load_native(
        tmp_path, CONFIGS[kind], shared=target.shared, hidden=64, vocabulary=target.vocabulary
    )
    assert again is not None
    attention = again.layers[0].self_attn
    assert type(attention.embed_q) is QuantizedMultiLinear
    assert again.layers[0].mlp.gate.e_score_correction_bias.dtype == mx.float32
    np.testing.assert_array_equal(run(again, kind)[0], states)
    np.testing.assert_array_equal(run(again, kind)[1], logits)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"lacks hnorm\.weight.*fetch or convert it anew"):
        load("deepseek_v3", tmp_path, {f"{FIRST}.hnorm.weight": None})


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    wide = np.zeros((32, 128), np.float32)
    with pytest.raises(ModelUnusable, match=r"fc\.weight has shape \(32, 128\), the model needs"):
        load("deepseek_v3", tmp_path, {f"{FIRST}.eh_proj.weight": wide})
