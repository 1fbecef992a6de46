"""The head of GLM-4.7-Flash: one more layer of the model, with latent attention.

Layout: that of DeepSeek V3 (`deepseek.py`), but the output head is the head's own and differs from
the model's. Checked on a tiny checkpoint in that layout against the MTP model of transformers with
both ends replaced by the head's.
"""

from __future__ import annotations

import dataclasses

import mlx.nn as nn
from mlx_lm.models.glm4_moe_lite import Glm4MoeLiteDecoderLayer, ModelArgs

from mtplx_kernel.heads.deepseek import owns_appended, read
from mtplx_kernel.heads.latent import latent_mask
from mtplx_kernel.heads.native import Config, Family


def layers(config: Config) -> list[nn.Module]:
    """One layer with experts."""
    args = dataclasses.replace(ModelArgs.from_dict(dict(config)), first_k_dense_replace=0)
    return [Glm4MoeLiteDecoderLayer(args, 0)]


FAMILY = Family(
    name="glm4_moe_lite",
    model_types=frozenset({"glm4_moe_lite"}),
    owns=owns_appended,
    read=read,
    layers=layers,
    mask=latent_mask,
)
