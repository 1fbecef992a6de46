"""The head of GLM-4.5, 4.6 and 4.7: one more layer of the model, with grouped attention.

Layout: that of DeepSeek V3 (`deepseek.py`) with this family's attention. The embedding and the
output head repeat the model's. Checked on a tiny checkpoint in that layout against the MTP model of
transformers.
"""

from __future__ import annotations

import dataclasses

import mlx.nn as nn
from mlx_lm.models.glm4_moe import DecoderLayer, ModelArgs

from mtplx_kernel.heads.deepseek import owns_appended, read_appended
from mtplx_kernel.heads.native import Config, Family


def layers(config: Config) -> list[nn.Module]:
    """One layer with experts."""
    args = dataclasses.replace(ModelArgs.from_dict(dict(config)), first_k_dense_replace=0)
    return [DecoderLayer(args, 0)]


FAMILY = Family(
    name="glm4_moe",
    model_types=frozenset({"glm4_moe"}),
    owns=owns_appended,
    read=read_appended,
    layers=layers,
)
