"""The heads of Ling 2.5 and Ling 3: one more layer of the model, with latent attention.

Layout: `model.layers.N.{enorm,hnorm,eh_proj,final_layernorm}` and a whole decoder layer with latent
attention below `attention` and experts, N being the number of the model's layers; Ling 3 gates the
heads of its attention. Both ends are the model's. Checked on tiny checkpoints in that layout
against the MTP model of transformers: its own for Ling 3; for Ling 2.5, which it does not know,
that of DeepSeek V3, whose layer is the same under other names.
"""

from __future__ import annotations

import mlx.nn as nn
from mlx_lm.models import bailing_hybrid, bailing_moe_v3

from mtplx_kernel.heads.bailing_moe import GATE
from mtplx_kernel.heads.bailing_moe import read as read_bailing
from mtplx_kernel.heads.deepseek import owns_appended
from mtplx_kernel.heads.latent import latent_mask, split_latent
from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

LING_3 = "BailingMoeV3ForCausalLM"


def _is_ling_3(config: Config) -> bool:
    """Both carry one `model_type`; mlx-lm tells them apart in the same way."""
    return LING_3 in (config.get("architectures") or ())


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the layer after the model's last, its latent attention split."""
    named = split_latent(read_bailing(weights, config), "layers.0.attention", config)
    return renamed(named, {f"{GATE}gate_proj.": GATE}) if _is_ling_3(config) else named


def layers(config: Config) -> list[nn.Module]:
    """One layer with latent attention and experts, as any layer after the model's last group."""
    count = int(config["num_hidden_layers"])
    if _is_ling_3(config):
        args = bailing_moe_v3.ModelArgs.from_dict(dict(config))
        return [bailing_moe_v3.BailingDecoderLayer(args, count)]
    return [bailing_hybrid.DecoderLayer(bailing_hybrid.ModelArgs.from_dict(dict(config)), count)]


FAMILY = Family(
    name="bailing_hybrid",
    model_types=frozenset({"bailing_hybrid"}),
    owns=owns_appended,
    read=read,
    layers=layers,
    mask=latent_mask,
)
