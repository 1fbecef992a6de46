"""The heads of DeepSeek V3, V3.2 and GLM-5: one more layer of the model, with latent attention.

Layout: `model.layers.N.{enorm,hnorm,eh_proj,shared_head.norm,shared_head.head,embed_tokens}` and a
whole decoder layer with experts, N being the number of the model's layers; fp8 with block scales as
DeepSeek publishes them. The embedding and the output head repeat the model's. Later layers, where a
checkpoint has several heads, are not run. Checked on tiny checkpoints in that layout, fp8 and not,
against the MTP model of transformers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import deepseek_v3, deepseek_v32, glm_moe_dsa
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import CacheList, KVCache

from mtplx_kernel.heads.experts import stacked
from mtplx_kernel.heads.latent import latent_mask, split_latent
from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

LAYER = re.compile(r"model\.layers\.(\d+)\.")
BEGINNINGS = {
    "embed_tokens.": "embed.",
    "enorm.": "enorm.",
    "hnorm.": "hnorm.",
    "eh_proj.": "fc.",
    "shared_head.norm.": "norm.",
    "shared_head.head.": "output.",
    "final_layernorm.": "norm.",
    "": "layers.0.",
}
INDEXER_EPS = 1e-6


def owns_appended(name: str, config: Config) -> bool:
    """Whether a tensor is of a layer after the model's last."""
    layer = LAYER.match(name)
    return layer is not None and int(layer[1]) >= config["num_hidden_layers"]


def read_appended(weights: Weights, config: Config) -> Weights:
    """Parameters of the layer after the model's last, its experts stacked.

    Parameters
    ----------
    weights
        By published name.
    config
        The model's.

    Returns
    -------
    dict
        The biases that choose experts are float32, whatever the file says: they decide by the
        last digits.
    """
    first = f"model.layers.{config['num_hidden_layers']}."
    bare = {n.removeprefix(first): a for n, a in weights.items() if n.startswith(first)}
    bare = {n: a for n, a in bare.items() if not n.endswith("rotary_emb.inv_freq")}
    named = stacked(renamed(bare, BEGINNINGS), "layers.0.mlp")
    return {n: a.astype(mx.float32) if _chooses(n) else a for n, a in named.items()}


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the layer after the model's last, its latent attention split."""
    return split_latent(read_appended(weights, config), "layers.0.self_attn", config)


def _chooses(name: str) -> bool:
    return name.endswith(("e_score_correction_bias", "expert_bias"))


def _dense_attention(config: Config) -> list[nn.Module]:
    args = deepseek_v3.ModelArgs.from_dict(dict(config))
    args = dataclasses.replace(args, first_k_dense_replace=0)
    return [deepseek_v3.DeepseekV3DecoderLayer(args, 0)]


def _sparse_attention(arguments: Any) -> Callable[[Config], list[nn.Module]]:
    """Layers of the two families whose attention reads the keys that an indexer chose."""

    def layers(config: Config) -> list[nn.Module]:
        args = arguments.from_dict(dict(config))
        args = dataclasses.replace(args, first_k_dense_replace=0)
        layer = deepseek_v32.DeepseekV32DecoderLayer(args, 0)
        # The published code's; mlx-lm leaves the default of its class, 1e-5.
        layer.self_attn.indexer.k_norm.eps = INDEXER_EPS
        return [layer]

    return layers


def _sparse_mask(states: mx.array, cache: Any) -> Any:
    return create_attention_mask(states, cache[0], return_array=True)


def _sparse_caches(config: Config) -> list[Any]:
    """Keys and values, and the indexer's keys."""
    return [CacheList(KVCache(), KVCache())]


DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    model_types=frozenset({"deepseek_v3"}),
    owns=owns_appended,
    read=read,
    layers=_dense_attention,
    mask=latent_mask,
)
DEEPSEEK_V32 = dataclasses.replace(
    DEEPSEEK_V3,
    name="deepseek_v32",
    model_types=frozenset({"deepseek_v32"}),
    layers=_sparse_attention(deepseek_v32.ModelArgs),
    caches=_sparse_caches,
    mask=_sparse_mask,
)
GLM_MOE_DSA = dataclasses.replace(
    DEEPSEEK_V32,
    name="glm_moe_dsa",
    model_types=frozenset({"glm_moe_dsa"}),
    layers=_sparse_attention(glm_moe_dsa.ModelArgs),
)
FAMILIES = (DEEPSEEK_V3, DEEPSEEK_V32, GLM_MOE_DSA)
