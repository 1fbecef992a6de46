"""The head of LongCat Flash: latent attention and a dense MLP, in a layer of a kind of its own.

Layout: `model.mtp.layers.0.{enorm.m,hnorm.m,eh_proj,input_layernorm,post_attention_layernorm,
self_attn.*,transformer_layer.mlp.*}`, `model.mtp.norm` and `model.mtp.embed_tokens`; fp8 with block
scales in one release. Checked on a tiny checkpoint in that layout against the attention and MLP
modules of transformers, put together as vLLM and SGLang do.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.longcat_flash import LongcatFlashMLA, LongcatFlashMLP, ModelArgs

from mtplx_kernel.heads.latent import latent_mask, split_latent
from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

PREFIX = "model.mtp."
FIRST = f"{PREFIX}layers.0."
BEGINNINGS = {
    f"{PREFIX}embed_tokens.": "embed.",
    f"{PREFIX}norm.": "norm.",
    f"{FIRST}enorm.m.": "enorm.",
    f"{FIRST}hnorm.m.": "hnorm.",
    f"{FIRST}eh_proj.": "fc.",
    f"{FIRST}transformer_layer.mlp.": "layers.0.mlp.",
    FIRST: "layers.0.",
}


class DenseLayer(nn.Module):
    """The model's latent attention and one of its dense MLPs, without its experts."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.self_attn = LongcatFlashMLA(args)
        self.mlp = LongcatFlashMLP(args)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, args.rms_norm_eps)

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """States of shape (rows, width, hidden), from states of the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


def owns(name: str, config: Config) -> bool:
    """Whether a tensor is the head's."""
    return name.startswith(PREFIX)


def read(weights: Weights, config: Config) -> Weights:
    """Parameters, the latent attention split."""
    kept = {n: a for n, a in weights.items() if not n.endswith("rotary_emb.inv_freq")}
    return split_latent(renamed(kept, BEGINNINGS), "layers.0.self_attn", config)


def layers(config: Config) -> list[nn.Module]:
    """One layer."""
    return [DenseLayer(ModelArgs.from_dict(dict(config)))]


FAMILY = Family(
    name="longcat_flash",
    model_types=frozenset({"longcat_flash"}),
    owns=owns,
    read=read,
    layers=layers,
    mask=latent_mask,
    norm_eps=lambda config: float(config["rms_norm_eps"]),
    stripped=PREFIX,
)
