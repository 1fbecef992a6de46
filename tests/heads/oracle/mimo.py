"""A tiny MiMo-7B as published, and the formula of its head."""

from __future__ import annotations

import numpy as np

from tests.heads.oracle import formula
from tests.heads.published import (
    COMMON,
    DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    Published,
    Shapes,
    base,
)

LAYER = "model.mtp_layers.0"


def published(layers: int = 1) -> Published:
    config = {**COMMON, "model_type": "mimo", "num_nextn_predict_layers": layers}
    made = Shapes()
    for number in range(layers):
        at = f"model.mtp_layers.{number}"
        made.norms(
            f"{at}.{name}"
            for name in (
                "token_layernorm",
                "hidden_layernorm",
                "final_layernorm",
                "input_layernorm",
                "post_attention_layernorm",
            )
        )
        made.matrix(f"{at}.input_proj", HIDDEN, 2 * HIDDEN)
        made.attention(f"{at}.self_attn", bias=True)
        made.mlp(f"{at}.mlp")
    return Published(config, base(config, lambda tensors: tensors), made.tensors)


def states(head: dict[str, formula.Array]) -> formula.Pass:
    attention = formula.Attention(HEADS, KV_HEADS, DIM, base=10000.0, rotary=DIM)
    return formula.Pass(
        head,
        enorm=f"{LAYER}.token_layernorm",
        hnorm=f"{LAYER}.hidden_layernorm",
        fc=f"{LAYER}.input_proj",
        decoder=formula.Decoder(LAYER, attention),
        hidden_first=True,
    )


def normed(head: dict[str, formula.Array], y: formula.Array) -> formula.Array:
    return formula.rms(y, np.asarray(head[f"{LAYER}.final_layernorm.weight"]), 1e-5)
