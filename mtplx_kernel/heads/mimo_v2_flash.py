"""The head of MiMo-V2-Flash: one sliding-window layer with a dense MLP.

Layout: `model.mtp.layers.{0,1,2}.{enorm,hnorm,eh_proj,final_layernorm,pre_mlp_layernorm,…}`, fp8
with block scales as published. Only layer 0 is run, as in vLLM. Checked on tiny checkpoints in
that layout, fp8 and not, against a NumPy transcription of the formula, which was checked against
the layer of transformers.
"""

from __future__ import annotations

from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import RotatingKVCache
from mlx_lm.models.mimo_v2_flash import DecoderLayer, ModelArgs

from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

PREFIX = "model.mtp."
FIRST = f"{PREFIX}layers.0."
BEGINNINGS = {
    f"{FIRST}enorm.": "enorm.",
    f"{FIRST}hnorm.": "hnorm.",
    f"{FIRST}eh_proj.": "fc.",
    f"{FIRST}final_layernorm.": "norm.",
    f"{FIRST}pre_mlp_layernorm.": "layers.0.post_attention_layernorm.",
    FIRST: "layers.0.",
}


def owns(name: str, config: Config) -> bool:
    """Whether a tensor is the head's."""
    return name.startswith(PREFIX)


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the first layer, the only one that is run."""
    return renamed({n: a for n, a in weights.items() if n.startswith(FIRST)}, BEGINNINGS)


def layers(config: Config) -> list[nn.Module]:
    """One layer with the sliding-window attention of the model and its dense MLP."""
    args = ModelArgs.from_dict(dict(config))
    return [DecoderLayer(args, is_moe=False, is_sliding_window=True)]


def caches(config: Config) -> list[Any]:
    """One that keeps the window."""
    return [RotatingKVCache(max_size=int(config["sliding_window_size"]))]


FAMILY = Family(
    name="mimo_v2_flash",
    model_types=frozenset({"mimo_v2_flash"}),
    owns=owns,
    read=read,
    layers=layers,
    caches=caches,
    norm_eps=lambda config: float(config["layernorm_epsilon"]),
    stripped=PREFIX,
)
