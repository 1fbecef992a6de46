"""Makes `transformers.npz`: what layers of the `transformers` library give for the tiny heads.

Run from the root of the repository, in an environment that holds this package, torch 2.14 and
transformers 5.24: ``python -m tests.heads.oracle.against_transformers``. A head is the library's
`MtpLayer` around its own decoder layer of that family; it has no class for Step 3.5 and MiMo-7B,
where the layers of Step 3.7 (without the limit of its MLP) and of Qwen2 stand in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import (
    Ernie4_5_MoeConfig,
    ExaoneMoeConfig,
    MiMoV2FlashConfig,
    Qwen2Config,
    Qwen3NextConfig,
)
from transformers.modeling_layers import MtpLayer
from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe as ernie
from transformers.models.exaone_moe import modeling_exaone_moe as exaone
from transformers.models.mimo_v2_flash import modeling_mimo_v2_flash as flash
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen35
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as next80
from transformers.models.step3p7 import modeling_step3p7 as step
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig

from tests.heads.oracle import ernie4_5_moe, exaone_moe, mimo, mimo_v2_flash, qwen, step3p5
from tests.heads.oracle.cases import embedded, features
from tests.heads.oracle.stored import RESULTS
from tests.heads.published import Tensors

FC = {
    "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.",
    "mtp.fc.": "eh_proj.",
    "mtp.norm.": "post_norm.",
    "mtp.layers.0.": "mtp_block.",
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def ran(
    layer: MtpLayer,
    rotary: Callable[[torch.Tensor, torch.Tensor], Any],
    tensors: Tensors,
    names: dict[str, str],
    window: int | None = None,
) -> np.ndarray:
    """The layer's states for the prompt of `cases`, after loading every tensor of the head."""
    state = {}
    for name, array in tensors.items():
        old = next((old for old in names if name.startswith(old)), None)
        if old is not None:
            state[names[old] + name[len(old) :]] = torch.tensor(array)
    layer.load_state_dict(state)
    h, e = torch.tensor(features())[None], torch.tensor(embedded())[None]
    length = h.shape[1]
    positions = torch.arange(length)[None]
    age = positions[0][:, None] - positions[0]
    seen = (age >= 0) & (age < (window or length))
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        layer.eval()
        states: np.ndarray = layer(e, h, rotary(h, positions), mask, positions, None)[0].numpy()
        return states


def eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


def qwen3_next() -> np.ndarray:
    config = eager(Qwen3NextConfig(**qwen.NEXT, rope_parameters=qwen.ROPE))
    layer = MtpLayer(config, next80.Qwen3NextDecoderLayer, next80.Qwen3NextRMSNorm, 1)
    tensors = qwen.fused(qwen.next_one().head)
    return ran(layer, next80.Qwen3NextRotaryEmbedding(config), tensors, FC)


def qwen3_5() -> np.ndarray:
    published = qwen.dense()
    config = eager(Qwen3_5TextConfig(**published.config["text_config"]))
    layer = MtpLayer(config, qwen35.Qwen3_5DecoderLayer, qwen35.Qwen3_5RMSNorm, 1)
    return ran(layer, qwen35.Qwen3_5TextRotaryEmbedding(config), published.head, FC)


def mimo_7b() -> np.ndarray:
    published = mimo.published()
    config = eager(Qwen2Config(**published.config, rope_parameters=ROPE))
    config.mtp_hidden_states_first = True
    layer = MtpLayer(config, qwen2.Qwen2DecoderLayer, qwen2.Qwen2RMSNorm, 0, use_post_norm=False)
    at = f"{mimo.LAYER}."
    names = {
        f"{at}token_layernorm.": "enorm.",
        f"{at}hidden_layernorm.": "hnorm.",
        f"{at}input_proj.": "eh_proj.",
        at: "mtp_block.",
    }
    tensors = {n: a for n, a in published.head.items() if "final_layernorm" not in n}
    return ran(layer, qwen2.Qwen2RotaryEmbedding(config), tensors, names)


def mimo_v2() -> np.ndarray:
    """The library counts the query out of the window, and doubles key heads where it slides."""
    published = mimo_v2_flash.published()
    rope = {**ROPE, "rope_theta": 500.0, "partial_rotary_factor": 0.334}
    options = {
        **published.config,
        "num_key_value_heads": published.config["swa_num_key_value_heads"] // 2,
        "layer_types": ["sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "dense"],
        "rope_parameters": {"sliding_attention": rope},
    }
    config = eager(MiMoV2FlashConfig(**options))
    layer = MtpLayer(config, flash.MiMoV2FlashDecoderLayer, flash.MiMoV2FlashRMSNorm, 0)
    rotary = flash.MiMoV2FlashRotaryEmbedding(config)
    at = f"{mimo_v2_flash.LAYER}."
    names = {
        f"{at}enorm.": "enorm.",
        f"{at}hnorm.": "hnorm.",
        f"{at}eh_proj.": "eh_proj.",
        f"{at}final_layernorm.": "post_norm.",
        f"{at}pre_mlp_layernorm.": "mtp_block.post_attention_layernorm.",
        f"{at}self_attn.attention_sink_bias": "mtp_block.self_attn.sinks",
        at: "mtp_block.",
    }
    return ran(
        layer,
        lambda x, p: rotary(x, p, "sliding_attention"),
        published.head,
        names,
        mimo_v2_flash.WINDOW,
    )


def exaone_global() -> np.ndarray:
    return _exaone("full_attention", None)


def exaone_sliding() -> np.ndarray:
    return _exaone("sliding_attention", exaone_moe.WINDOW)


def _exaone(kind: str, window: int | None) -> np.ndarray:
    published = exaone_moe.published()
    options = {
        **published.config,
        "layer_types": [kind, kind],
        "mlp_layer_types": ["dense", "sparse"],
        "rope_parameters": ROPE,
    }
    config = eager(ExaoneMoeConfig(**options))
    layer = MtpLayer(config, exaone.ExaoneMoeDecoderLayer, exaone.ExaoneMoeRMSNorm, 0)
    rotary = exaone.ExaoneMoeRotaryEmbedding(config)
    return ran(layer, rotary, published.head, FC, window)


def step3p5_without_limit() -> np.ndarray:
    published = step3p5.published()
    options = {
        **published.config,
        "num_key_value_heads": step3p5.KV_HEADS,
        "num_attention_heads": step3p5.HEADS,
        "num_hidden_layers": 1,
        "num_nextn_predict_layers": 0,
        "layer_types": ["sliding_attention"],
        "mlp_layer_types": ["dense"],
        "rope_theta": [100.0],
        "partial_rotary_factors": [1.0],
        "swiglu_limits_shared": [None],
        "swiglu_limits": [None],
    }
    config = eager(Step3p7TextConfig(**options))
    layer = MtpLayer(config, step.Step3p7DecoderLayer, step.Step3p7RMSNorm, 0, use_post_norm=False)
    rotary = step.Step3p7RotaryEmbedding(config)
    at = f"{step3p5.LAYER}."
    names = {part: part for part in ("enorm.", "hnorm.", "eh_proj.")}
    names = {f"{at}{part}": part for part in names} | {at: "mtp_block."}
    tensors = {n: a for n, a in published.head.items() if "shared_head" not in n}
    return ran(
        layer, lambda x, p: rotary(x, p, "sliding_attention"), tensors, names, step3p5.WINDOW
    )


def ernie_dense() -> np.ndarray:
    published = ernie4_5_moe.published()
    config = eager(Ernie4_5_MoeConfig(**published.config, rope_parameters=ROPE))
    layer = MtpLayer(
        config, ernie.Ernie4_5_MoeDecoderLayer, ernie.Ernie4_5_MoeRMSNorm, 0, use_post_norm=False
    )
    names = {
        "model.mtp_emb_norm.0.": "enorm.",
        "model.mtp_hidden_norm.0.": "hnorm.",
        "model.mtp_linear_proj.0.": "eh_proj.",
        "model.mtp_block.0.": "mtp_block.",
    }
    return ran(layer, ernie.Ernie4_5_MoeRotaryEmbedding(config), published.head, names)


MAKERS = (
    qwen3_next,
    qwen3_5,
    mimo_7b,
    mimo_v2,
    exaone_global,
    exaone_sliding,
    step3p5_without_limit,
    ernie_dense,
)

if __name__ == "__main__":
    made: dict[str, Any] = {maker.__name__: maker() for maker in MAKERS}
    np.savez_compressed(RESULTS, **made)
    sys.stdout.write("".join(f"{name} {array.shape}\n" for name, array in made.items()))
