"""A tiny ERNIE 4.5 as published, and the formula of its head."""

from __future__ import annotations

from typing import Any

from tests.heads.oracle import formula
from tests.heads.published import (
    COMMON,
    DIM,
    EXPERTS,
    HEADS,
    HIDDEN,
    KV_HEADS,
    Published,
    Shapes,
    base,
    unstacked,
)

BLOCK = "model.mtp_block.0"
CONFIG: dict[str, Any] = {
    **COMMON,
    "model_type": "ernie4_5_moe",
    "use_bias": False,
    "tie_word_embeddings": True,
    "moe_num_experts": EXPERTS,
    "moe_layer_start_index": 1,
    "moe_intermediate_size": 32,
    "moe_k": 2,
    "moe_num_shared_experts": 1,
    "num_nextn_predict_layers": 1,
}


def published() -> Published:
    made = Shapes()
    made.norms(("model.mtp_emb_norm.0", "model.mtp_hidden_norm.0"))
    made.norms(f"{BLOCK}.{name}" for name in ("input_layernorm", "post_attention_layernorm"))
    made.matrix("model.mtp_linear_proj.0", HIDDEN, 2 * HIDDEN)
    made.attention(f"{BLOCK}.self_attn")
    made.mlp(f"{BLOCK}.mlp")
    return Published(CONFIG, base(CONFIG, unstacked), made.tensors)


def states(head: dict[str, formula.Array]) -> formula.Pass:
    attention = formula.Attention(HEADS, KV_HEADS, DIM, base=10000.0, rotary=DIM, interleaved=True)
    return formula.Pass(
        head,
        enorm="model.mtp_emb_norm.0",
        hnorm="model.mtp_hidden_norm.0",
        fc="model.mtp_linear_proj.0",
        decoder=formula.Decoder(BLOCK, attention),
    )
