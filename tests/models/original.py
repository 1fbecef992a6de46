"""Tiny random checkpoints in their publishers' own layout, an MTP head included."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.models.convert import ConversionReport, convert
from tests import tiny

Weights = dict[str, mx.array]
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 16
EXPERTS, INNER, SHARED_INNER = 4, 32, 32
LAYERS = 4
CARD = "---\nlicense: apache-2.0\n---\n\n# A tiny model\n\nIt was made of dice.\n"
NORMS = (".input_layernorm", ".post_attention_layernorm", "model.norm", ".q_norm", ".k_norm")


def rows(*shape: int, low: float = -0.3, high: float = 0.3) -> mx.array:
    return mx.random.uniform(low, high, shape)


def gated(prefix: str, inner: int) -> Weights:
    """A gated feed-forward layer's tensors."""
    return {
        f"{prefix}.gate_proj.weight": rows(inner, HIDDEN),
        f"{prefix}.up_proj.weight": rows(inner, HIDDEN),
        f"{prefix}.down_proj.weight": rows(HIDDEN, inner),
    }


def unstacked(weights: Weights) -> Weights:
    """One tensor an expert, as published."""
    made: Weights = {}
    for name, array in weights.items():
        if ".switch_mlp." in name:
            for number in range(array.shape[0]):
                made[name.replace("switch_mlp", f"experts.{number}")] = array[number]
        else:
            made[name] = array
    return made


def qwen3_next_head() -> Weights:
    layer = "mtp.layers.0"
    made = {
        "mtp.fc.weight": rows(HIDDEN, 2 * HIDDEN),
        f"{layer}.self_attn.q_proj.weight": rows(2 * HEADS * HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": rows(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": rows(KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": rows(HIDDEN, HEADS * HEAD_DIM),
        f"{layer}.mlp.gate.weight": rows(EXPERTS, HIDDEN),
        f"{layer}.mlp.shared_expert_gate.weight": rows(1, HIDDEN),
        **gated(f"{layer}.mlp.shared_expert", SHARED_INNER),
    }
    for number in range(EXPERTS):
        made |= gated(f"{layer}.mlp.experts.{number}", INNER)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        made[f"mtp.{name}.weight"] = rows(HIDDEN)
    for name in ("input_layernorm", "post_attention_layernorm"):
        made[f"{layer}.{name}.weight"] = rows(HIDDEN)
    for name in ("q_norm", "k_norm"):
        made[f"{layer}.self_attn.{name}.weight"] = rows(HEAD_DIM)
    return made


def qwen3_next() -> Weights:
    """Norms stored as what is to be added to one, convolutions with channels first."""
    made: Weights = {}
    target: Weights = dict(tree_flatten(tiny.build("qwen3_next").parameters()))
    for name, array in unstacked(target).items():
        if "conv1d" in name:
            array = array.moveaxis(1, 2)
        elif name.removesuffix(".weight").endswith(NORMS):
            array = rows(*array.shape)
        made[name] = array
    return made | qwen3_next_head()


def deepseek_v3() -> Weights:
    """Keys and values in one projection; the head is one layer more, with an output of its own."""
    made: Weights = {}
    target: Weights = dict(tree_flatten(tiny.build("deepseek_v3").parameters()))
    for name, array in unstacked(target).items():
        if name.endswith("embed_q.weight"):
            values = target[name.replace("embed_q", "unembed_out")]
            joined = mx.concatenate([array.swapaxes(-1, -2), values], axis=1)
            made[name.replace("embed_q", "kv_b_proj")] = joined.reshape(-1, joined.shape[-1])
        elif name.endswith("e_score_correction_bias"):
            made[name] = rows(EXPERTS)
        elif not name.endswith("unembed_out.weight"):
            made[name] = rows(*array.shape, low=0.7, high=1.3) if array.ndim == 1 else array
    last, head = f"model.layers.{LAYERS - 1}.", f"model.layers.{LAYERS}."
    for name in [n for n in made if n.startswith(last)]:
        array = made[name]
        fresh = rows(*array.shape, low=0.7, high=1.3) if "norm" in name else rows(*array.shape)
        made[head + name.removeprefix(last)] = fresh
    return made | {
        f"{head}eh_proj.weight": rows(HIDDEN, 2 * HIDDEN),
        f"{head}enorm.weight": rows(HIDDEN, low=0.7, high=1.3),
        f"{head}hnorm.weight": rows(HIDDEN, low=0.7, high=1.3),
        f"{head}shared_head.norm.weight": rows(HIDDEN, low=0.7, high=1.3),
        f"{head}shared_head.head.weight": rows(*made["lm_head.weight"].shape),
        f"{head}embed_tokens.weight": made["model.embed_tokens.weight"],
    }


def llama() -> Weights:
    return dict(tree_flatten(tiny.build("llama").parameters()))


KINDS: dict[str, Callable[[], Weights]] = {
    "llama": llama,
    "qwen3_next": qwen3_next,
    "deepseek_v3": deepseek_v3,
}


def bfloat16(name: str, array: mx.array) -> mx.array:
    """The usual published precision; router biases and decay rates stay float32."""
    whole = "e_score_correction_bias" in name or "A_log" in name
    return array if whole else array.astype(mx.bfloat16)


def fp8(weights: Weights) -> Weights:
    """Matrices of the layers as e4m3 with a scale for each block of 128 by 128."""
    made: Weights = {}
    for name, array in weights.items():
        if array.ndim != 2 or "_proj" not in name or "eh_proj" in name:
            made[name] = array
            continue
        scale = mx.abs(array.astype(mx.float32)).max() / 448
        blocks = [-(-n // 128) for n in array.shape]
        made[name] = mx.to_fp8(array.astype(mx.float32) / scale)
        made[f"{name}_scale_inv"] = mx.full(blocks, scale)
    return made


def write(kind: str, folder: Path, *, packed: bool = False, **changes: Any) -> Path:
    """Write a checkpoint; `packed` stores fp8, `changes` go into its config."""
    mx.random.seed(7)
    folder.mkdir(parents=True)
    weights = {name: bfloat16(name, array) for name, array in KINDS[kind]().items()}
    names = sorted(weights)
    halves = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    places: dict[str, str] = {}
    for file, chosen in halves.items():
        part = {name: weights[name] for name in chosen}
        part = fp8(part) if packed else part
        mx.save_safetensors(str(folder / file), part, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {**tiny.COMMON, **tiny.CONFIGS[kind], "torch_dtype": "bfloat16", **changes}
    if kind != "llama":
        config["num_nextn_predict_layers"] = 1
    if packed:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    write_texts(folder)
    return folder


def converted(source: Path, made: Path, **options: Any) -> ConversionReport:
    """Convert in groups of 32, which fit the tiny widths, without a progress bar."""
    options = {"bits": None, "group_size": 32, "progress": False, **options}
    return convert(str(source), made, **options)


def write_texts(folder: Path) -> None:
    """A tokenizer, a chat template in a file of its own, settings, a licence and a card."""
    tiny.tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(tiny.CHAT_TEMPLATE)
    generation = {"eos_token_id": [tiny.END_ID], "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "LICENSE").write_text("Do as you like.\n")
    (folder / "README.md").write_text(CARD)
