"""A tiny Step 3.5 as published, and the formulas of its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.heads.oracle import formula
from tests.heads.published import (
    COMMON,
    DIM,
    EXPERTS,
    HIDDEN,
    VOCABULARY,
    Array,
    Published,
    Shapes,
    Tensors,
    base,
)

LAYERS, WINDOW, HEADS, KV_HEADS, LIMIT = 3, 4, 6, 2, 0.4
LAYER = f"model.layers.{LAYERS}"
BASES = (100.0, 300.0, 900.0)
"""Of the heads' rotary positions."""
CONFIG: dict[str, Any] = {
    **COMMON,
    "model_type": "step3p5",
    "num_hidden_layers": LAYERS,
    "num_attention_groups": 2,
    "num_nextn_predict_layers": 3,
    "sliding_window": WINDOW,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]
    + 3 * ["sliding_attention"],
    "rope_theta": [5000.0, 100.0, 100.0, *BASES],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 1.0, 1.0],
    "attention_other_setting": {"num_attention_heads": HEADS, "num_attention_groups": KV_HEADS},
    "moe_num_experts": EXPERTS,
    "moe_top_k": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 32,
    "moe_layers_enum": "1,2",
    "swiglu_limits_shared": [0, 0, 0, LIMIT, LIMIT, LIMIT],
}
MOVES = (
    (".mlp.switch_mlp.", ".moe."),
    (".mlp.gate.gate.", ".moe.gate."),
    (".mlp.gate.router_bias", ".moe.router_bias"),
    (".mlp.share_expert.", ".share_expert."),
)


def published(*, inside: str = "", **changes: Any) -> Published:
    """Three heads after the model's layers; `inside` is "transformer." in some releases."""
    config = {**CONFIG, **changes}
    made = Shapes()
    for number in range(LAYERS, LAYERS + 3):
        at = f"model.layers.{number}."
        made.norms((f"{at}enorm", f"{at}hnorm", f"{at}{inside}shared_head.norm"), centre=0.0)
        made.norms(
            (f"{at}{inside}input_layernorm", f"{at}{inside}post_attention_layernorm"), centre=0.0
        )
        made.matrix(f"{at}eh_proj", HIDDEN, 2 * HIDDEN)
        made.matrix(f"{at}{inside}shared_head.output", VOCABULARY, HIDDEN)
        attention = f"{at}{inside}self_attn"
        made.norms((f"{attention}.q_norm", f"{attention}.k_norm"), DIM, centre=0.0)
        made.matrix(f"{attention}.q_proj", HEADS * DIM, HIDDEN)
        made.matrix(f"{attention}.k_proj", KV_HEADS * DIM, HIDDEN)
        made.matrix(f"{attention}.v_proj", KV_HEADS * DIM, HIDDEN)
        made.matrix(f"{attention}.g_proj", HEADS, HIDDEN)
        made.matrix(f"{attention}.o_proj", HIDDEN, HEADS * DIM)
        made.mlp(f"{at}{inside}mlp")
    return Published(config, base(config, _published), made.tensors)


def _published(tensors: Tensors) -> Tensors:
    named: Tensors = {}
    for name, array in tensors.items():
        for ours, theirs in MOVES:
            name = name.replace(ours, theirs)
        lacks_one = "norm" in name and name.endswith(".weight")
        named[name] = array - np.float32(1) if lacks_one else array
    return named


def tensors(head: dict[str, Array]) -> dict[str, formula.Array]:
    """In float64, with 1 added to the norms and without `transformer.`."""
    plain = {n.replace(".transformer.", "."): a for n, a in head.items()}
    return {n: a.astype(np.float64) + ("norm" in n) for n, a in plain.items()}


def clamped_mlp(x: formula.Array, t: formula.Tensors, at: str) -> formula.Array:
    gate = np.minimum(formula.silu(x @ t[f"{at}.gate_proj.weight"].T), LIMIT)
    up = np.clip(x @ t[f"{at}.up_proj.weight"].T, -LIMIT, LIMIT)
    return (gate * up) @ t[f"{at}.down_proj.weight"].T


def states(
    t: dict[str, formula.Array],
    feedforward: Callable[[formula.Array, formula.Tensors, str], formula.Array] = clamped_mlp,
    *,
    number: int = 0,
    window: int = WINDOW,
    base: float = BASES[0],
) -> formula.Pass:
    """The pass of one of the heads."""
    at = f"model.layers.{LAYERS + number}"
    attention = formula.Attention(
        HEADS, KV_HEADS, DIM, base=base, rotary=DIM, norms=True, gate="headwise", window=window
    )
    return formula.Pass(
        t,
        enorm=f"{at}.enorm",
        hnorm=f"{at}.hnorm",
        fc=f"{at}.eh_proj",
        decoder=formula.Decoder(at, attention, feedforward=feedforward),
    )


def chained(
    t: dict[str, formula.Array],
    features: formula.Array,
    embedded: formula.Array,
    window: int,
    bases: tuple[float, ...] = BASES,
) -> list[formula.Array]:
    """Each head's states: head s reads those of the one before it and the s-th token further on.

    `embedded` reaches as far as tokens are known, drafted ones too; head s has a state for each
    position whose token s + 1 further on is known.
    """
    made = [features]
    for number in range(3):
        count = min(len(made[-1]), len(embedded) - number)
        run = states(t, number=number, window=window, base=bases[number])
        made.append(run(made[-1][:count], embedded[number : number + count]))
    return made[1:]


def logits(t: dict[str, formula.Array], number: int = 0) -> Callable[[formula.Array], Any]:
    at = f"model.layers.{LAYERS + number}.shared_head"
    norm, output = t[f"{at}.norm.weight"], t[f"{at}.output.weight"]
    return lambda y: formula.rms(y, norm, 1e-5) @ output.T
