"""Tiny Qwen checkpoints as published, and the formula of their head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.heads.oracle import formula
from tests.heads.published import (
    COMMON,
    DIM,
    EXPERTS,
    HEADS,
    HIDDEN,
    KV_HEADS,
    Array,
    Published,
    Shapes,
    Tensors,
    base,
    unstacked,
)

EXPERT_WIDTH = 32
DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
MIXTURE: dict[str, Any] = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": EXPERT_WIDTH,
    "mlp_only_layers": [],
    "moe_intermediate_size": EXPERT_WIDTH,
    "norm_topk_prob": True,
}
NEXT: dict[str, Any] = {
    **COMMON,
    **DELTA,
    **MIXTURE,
    "model_type": "qwen3_next",
    "partial_rotary_factor": 0.5,
}
UNNAMED = {"weight": ""}
QUANTISED = {kind: f".{kind}" for kind in ("weight", "scales", "biases")}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
LACKING_ONE = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "model.norm")


def dense() -> Published:
    """Qwen 3.5: a text model inside a model with eyes."""
    text = {**COMMON, **DELTA, "model_type": "qwen3_5_text", "rope_parameters": ROPE}
    config = {"model_type": "qwen3_5", "text_config": text}
    return Published(config, base(config, _with_eyes), _head(mixture=False))


def mixture(in_one: bool) -> Published:
    """Qwen 3.5 with experts; its head stores them fused in one tensor or one by one."""
    text = {**COMMON, **DELTA, **MIXTURE, "model_type": "qwen3_5_moe_text", "rope_parameters": ROPE}
    config = {"model_type": "qwen3_5_moe", "text_config": text}
    head = _head(mixture=True)
    return Published(config, base(config, _with_eyes), fused(head) if in_one else head)


def next_one(normed: bool = True) -> Published:
    """Qwen3-Next: experts one by one."""
    config = {**NEXT, "norm_topk_prob": normed}
    return Published(config, base(config, _published), _head(mixture=True))


def _published(tensors: Tensors) -> Tensors:
    return {n: _as_in_torch(n, a) for n, a in unstacked(tensors).items()}


def _as_in_torch(name: str, array: Array) -> Array:
    if "conv1d" in name:
        return np.moveaxis(array, 1, 2)
    short = name.removesuffix(".weight")
    return array - np.float32(1) if short.endswith(LACKING_ONE) else array


def _with_eyes(tensors: Tensors) -> Tensors:
    named: Tensors = {"model.visual.patch.weight": np.zeros((2, 2), np.float32)}
    for name, array in tensors.items():
        array = _as_in_torch(name, array)
        name = name.removeprefix("language_model.")
        named[name.replace("model.", "model.language_model.", 1)] = array
    return fused(named)


def fused(tensors: Tensors, ends: dict[str, str] = UNNAMED) -> Tensors:
    """Experts of each mixture in two tensors, `ends` giving the end of the new names."""
    rest = dict(unstacked(tensors))
    for block in sorted({n.split(".experts.")[0] for n in rest if ".experts.0." in n}):
        for kind, end in ends.items():
            gate, up, down = (
                np.stack(
                    [rest.pop(f"{block}.experts.{e}.{part}_proj.{kind}") for e in range(EXPERTS)]
                )
                for part in ("gate", "up", "down")
            )
            rest[f"{block}.experts.gate_up_proj{end}"] = np.concatenate([gate, up], axis=1)
            rest[f"{block}.experts.down_proj{end}"] = down
    return rest


def _head(*, mixture: bool) -> Tensors:
    made = Shapes()
    made.matrix("mtp.fc", HIDDEN, 2 * HIDDEN)
    layer = "mtp.layers.0"
    made.norms(
        (
            "mtp.pre_fc_norm_embedding",
            "mtp.pre_fc_norm_hidden",
            "mtp.norm",
            f"{layer}.input_layernorm",
            f"{layer}.post_attention_layernorm",
        ),
        centre=-0.2,
    )
    made.norms((f"{layer}.self_attn.q_norm", f"{layer}.self_attn.k_norm"), DIM, centre=0.2)
    made.attention(f"{layer}.self_attn", queries=2 * HEADS * DIM)
    if mixture:
        made.matrix(f"{layer}.mlp.gate", EXPERTS, HIDDEN)
        made.matrix(f"{layer}.mlp.shared_expert_gate", 1, HIDDEN)
        made.mlp(f"{layer}.mlp.shared_expert", EXPERT_WIDTH)
        for e in range(EXPERTS):
            made.mlp(f"{layer}.mlp.experts.{e}", EXPERT_WIDTH)
    else:
        made.mlp(f"{layer}.mlp")
    return made.tensors


def states(head: Tensors, normed: bool = True) -> Callable[[Any, Any], Any]:
    """The head's pass, on tensors with experts one by one; its norms lack 1."""
    t = {n: a.astype(np.float64) + ("norm" in n) for n, a in head.items()}
    layer = "mtp.layers.0"
    attention = formula.Attention(
        HEADS, KV_HEADS, DIM, base=10000.0, rotary=DIM // 2, norms=True, gate="elementwise"
    )
    experts = partial(formula.softmax_mixture, top=2, normed=normed)
    feedforward = experts if f"{layer}.mlp.gate.weight" in t else formula.mlp
    run = formula.Pass(
        t,
        enorm="mtp.pre_fc_norm_embedding",
        hnorm="mtp.pre_fc_norm_hidden",
        fc="mtp.fc",
        decoder=formula.Decoder(layer, attention, feedforward=feedforward),
    )
    return lambda features, embedded: formula.rms(
        run(features, embedded), t["mtp.norm.weight"], 1e-5
    )
