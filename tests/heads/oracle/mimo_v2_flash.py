"""A tiny MiMo-V2-Flash as published, and the formula of its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.heads.oracle import formula
from tests.heads.published import (
    COMMON,
    EXPERTS,
    HEADS,
    HIDDEN,
    KV_HEADS,
    Published,
    Shapes,
    base,
    unstacked,
)

LAYER = "model.mtp.layers.0"
WINDOW, DIM, VALUE_DIM, SCALE = 5, 24, 16, 0.7
CONFIG: dict[str, Any] = {
    **COMMON,
    "model_type": "mimo_v2_flash",
    "num_experts_per_tok": 2,
    "hybrid_layer_pattern": [0, 1],
    "moe_layer_freq": [0, 1],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "sliding_window_size": WINDOW,
    "moe_intermediate_size": 32,
    "n_shared_experts": None,
    "n_routed_experts": EXPERTS,
    "routed_scaling_factor": None,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "layernorm_epsilon": 1e-5,
    "swa_rope_theta": 500.0,
    "swa_num_attention_heads": HEADS,
    "swa_num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "v_head_dim": VALUE_DIM,
    "swa_head_dim": DIM,
    "swa_v_head_dim": VALUE_DIM,
    "partial_rotary_factor": 0.334,
    "attention_value_scale": SCALE,
}


def published() -> Published:
    """Three layers, of which the first is run."""
    made = Shapes()
    for number in range(3):
        at = f"model.mtp.layers.{number}"
        names = ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm")
        made.norms(f"{at}.{name}" for name in names)
        made.matrix(f"{at}.eh_proj", HIDDEN, 2 * HIDDEN)
        made.matrix(f"{at}.self_attn.q_proj", HEADS * DIM, HIDDEN)
        made.matrix(f"{at}.self_attn.k_proj", KV_HEADS * DIM, HIDDEN)
        made.matrix(f"{at}.self_attn.v_proj", KV_HEADS * VALUE_DIM, HIDDEN)
        made.matrix(f"{at}.self_attn.o_proj", HIDDEN, HEADS * VALUE_DIM)
        made.bias(f"{at}.self_attn", HEADS, ".attention_sink_bias")
        made.mlp(f"{at}.mlp")
    return Published(CONFIG, base(CONFIG, unstacked), made.tensors)


def states(head: dict[str, formula.Array]) -> Callable[[formula.Array, formula.Array], Any]:
    attention = formula.Attention(
        HEADS,
        KV_HEADS,
        DIM,
        base=500.0,
        rotary=8,
        window=WINDOW,
        sinks=True,
        value_scale=SCALE,
    )
    run = formula.Pass(
        head,
        enorm=f"{LAYER}.enorm",
        hnorm=f"{LAYER}.hnorm",
        fc=f"{LAYER}.eh_proj",
        decoder=formula.Decoder(LAYER, attention, second_norm="pre_mlp_layernorm"),
    )
    final = head[f"{LAYER}.final_layernorm.weight"]
    return lambda features, embedded: formula.rms(run(features, embedded), final, 1e-5)
