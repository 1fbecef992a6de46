"""The head of ERNIE 4.5: one dense layer, without a norm before the output head.

Layout: `model.mtp_{emb_norm,hidden_norm,linear_proj}.0` and `model.mtp_block.0.*`. Checked on a
tiny checkpoint in that layout against a NumPy transcription of the formula, which was checked
against the layer of transformers.
"""

from __future__ import annotations

import dataclasses

import mlx.nn as nn
from mlx_lm.models.ernie4_5_moe import Ernie4_5_DecoderLayer, ModelArgs

from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

PARTS = ("mtp_emb_norm.", "mtp_hidden_norm.", "mtp_linear_proj.", "mtp_block.")
BEGINNINGS = {
    "model.mtp_emb_norm.0.": "enorm.",
    "model.mtp_hidden_norm.0.": "hnorm.",
    "model.mtp_linear_proj.0.": "fc.",
    "model.mtp_block.0.": "layers.0.",
}


def owns(name: str, config: Config) -> bool:
    """Whether a tensor is the head's."""
    return name.startswith(tuple(f"model.{part}" for part in PARTS))


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the first layer, the only one that is run."""
    first = {n: a for n, a in weights.items() if n.split(".")[2] == "0"}
    return renamed(first, BEGINNINGS)


def layers(config: Config) -> list[nn.Module]:
    """One layer as the model's, but with a dense MLP."""
    args = ModelArgs.from_dict(dict(config))
    args = dataclasses.replace(args, moe_layer_start_index=1)
    return [Ernie4_5_DecoderLayer(args, 0)]


FAMILY = Family(
    name="ernie4_5_moe",
    model_types=frozenset({"ernie4_5_moe"}),
    owns=owns,
    read=read,
    layers=layers,
    final_norm=False,
)
