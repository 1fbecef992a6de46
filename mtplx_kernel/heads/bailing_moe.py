"""The head of Ling 2 and Ring 2: one more layer of the model.

Layout: `model.layers.N.{enorm,hnorm,eh_proj,final_layernorm}` and a whole decoder layer with
experts, N being the number of the model's layers; both ends are the model's. That the state is the
one after the model's final norm, and that the head's state goes on after its own, is what the
makers' published model code does. Checked on a tiny checkpoint in that layout against a NumPy
transcription of the formula.
"""

from __future__ import annotations

import dataclasses

import mlx.nn as nn
from mlx_lm.models.bailing_moe import BailingMoeDecoderLayer, ModelArgs

from mtplx_kernel.heads.deepseek import owns_appended, read_appended
from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

GATE = "layers.0.mlp.gate."
GATES = {
    f"{GATE}e_score_correction_bias": f"{GATE}expert_bias",
    f"{GATE}weight": f"{GATE}gate_proj.weight",
    f"{GATE}bias": f"{GATE}gate_proj.bias",
}


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the layer after the model's last, its gate named as mlx-lm's."""
    return renamed(read_appended(weights, config), GATES)


def layers(config: Config) -> list[nn.Module]:
    """One layer with experts."""
    args = dataclasses.replace(ModelArgs.from_dict(dict(config)), first_k_dense_replace=0)
    return [BailingMoeDecoderLayer(args, 0)]


FAMILY = Family(
    name="bailing_moe",
    model_types=frozenset({"bailing_moe"}),
    owns=owns_appended,
    read=read,
    layers=layers,
)
