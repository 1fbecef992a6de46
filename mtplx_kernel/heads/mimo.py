"""The head of MiMo-7B: one Qwen2 layer behind [hidden, embedding].

Layout: `model.mtp_layers.0.{token_layernorm,hidden_layernorm,input_proj,final_layernorm}` and the
layer's tensors beside them. The head reads the target's state before its final norm and passes its
own on before `final_layernorm`. Checked on a tiny checkpoint in that layout against a NumPy
transcription of the formula, which was checked against the Qwen2 layer of transformers.
"""

from __future__ import annotations

import mlx.nn as nn
from mlx_lm.models.mimo import ModelArgs, TransformerBlock

from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

PREFIX = "model.mtp_layers."
FIRST = f"{PREFIX}0."
BEGINNINGS = {
    f"{FIRST}token_layernorm.": "enorm.",
    f"{FIRST}hidden_layernorm.": "hnorm.",
    f"{FIRST}input_proj.": "fc.",
    f"{FIRST}final_layernorm.": "norm.",
    FIRST: "layers.0.",
}


def owns(name: str, config: Config) -> bool:
    """Whether a tensor is the head's."""
    return name.startswith(PREFIX)


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the first layer, the only one that is run."""
    first = {n: a for n, a in weights.items() if n.startswith(FIRST) and "rotary_emb" not in n}
    return renamed(first, BEGINNINGS)


def layers(config: Config) -> list[nn.Module]:
    """One layer as the model's."""
    return [TransformerBlock(ModelArgs.from_dict(dict(config)))]


FAMILY = Family(
    name="mimo",
    model_types=frozenset({"mimo"}),
    owns=owns,
    read=read,
    layers=layers,
    hidden="pre",
    recycle="pre",
    concat="he",
    stripped=PREFIX,
)
