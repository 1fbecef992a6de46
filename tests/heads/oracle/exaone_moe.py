"""A tiny K-EXAONE as published, and the formula of its head."""

from __future__ import annotations

from collections.abc import Callable
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
    Tensors,
    base,
    unstacked,
)

LAYER = "mtp.layers.0"
WINDOW = 6
CONFIG: dict[str, Any] = {
    **COMMON,
    "model_type": "exaone_moe",
    "moe_intermediate_size": 32,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
    "is_moe_layer": [False, True],
    "num_nextn_predict_layers": 1,
}
SLIDING = {"mtp_layer_types": ["sliding_attention"]}


def published(**changes: Any) -> Published:
    config = {**CONFIG, **changes}
    made = Shapes()
    made.matrix("mtp.fc", HIDDEN, 2 * HIDDEN)
    made.norms(f"mtp.{name}" for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"))
    made.norms(f"{LAYER}.{name}" for name in ("input_layernorm", "post_attention_layernorm"))
    made.norms((f"{LAYER}.self_attn.q_norm", f"{LAYER}.self_attn.k_norm"), DIM)
    made.attention(f"{LAYER}.self_attn")
    made.mlp(f"{LAYER}.mlp")
    return Published(config, base(config, _published), made.tensors)


def _published(tensors: Tensors) -> Tensors:
    moved = {n.replace("gate.e_score", "e_score"): a for n, a in tensors.items()}
    return unstacked(moved)


def states(
    head: dict[str, formula.Array], sliding: bool
) -> Callable[[formula.Array, formula.Array], Any]:
    """Only layers with a window have rotary positions, where the model has any such layer."""
    attention = formula.Attention(
        HEADS,
        KV_HEADS,
        DIM,
        base=10000.0,
        rotary=DIM if sliding else 0,
        norms=True,
        window=WINDOW if sliding else None,
    )
    run = formula.Pass(
        head,
        enorm="mtp.pre_fc_norm_embedding",
        hnorm="mtp.pre_fc_norm_hidden",
        fc="mtp.fc",
        decoder=formula.Decoder(LAYER, attention),
    )
    final = head["mtp.norm.weight"]
    return lambda features, embedded: formula.rms(run(features, embedded), final, 1e-5)
