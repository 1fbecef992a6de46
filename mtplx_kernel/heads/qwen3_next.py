"""The head of Qwen3-Next: one full-attention layer with a mixture of experts.

Layout: `mtp.fc`, `mtp.pre_fc_norm_{embedding,hidden}`, `mtp.norm`, `mtp.layers.0.*`, with experts
one by one, fused or stacked, and norms that lack 1 where the checkpoint is as published. Checked
on a tiny checkpoint in that layout against a NumPy transcription of the formula, which was checked
against the layer of transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import mlx.nn as nn
from mlx_lm.models.qwen3_next import ModelArgs, Qwen3NextDecoderLayer

from mtplx_kernel.heads.experts import stacked
from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

PREFIXES = ("mtp.", "model.mtp.")
BEGINNINGS = {
    "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.",
    "mtp.fc.": "fc.",
    "mtp.norm.": "norm.",
    "mtp.layers.0.": "layers.0.",
    "mtp.embed_tokens.": "embed.",
}


def owns(name: str, config: Config) -> bool:
    """Whether a tensor is the head's."""
    return name.startswith(PREFIXES)


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the head. Of several layers only the first is run, as in vLLM.

    An embedding is the head's own where the config says `mtp_use_dedicated_embeddings`, else a
    copy of the target's, as is an output head.
    """
    dedicated = bool(config.get("mtp_use_dedicated_embeddings"))
    plain = {n.removeprefix("model."): a for n, a in weights.items()}
    used = {n: a for n, a in plain.items() if _is_used(n, dedicated)}
    return stacked(renamed(used, BEGINNINGS), "layers.0.mlp")


def _is_used(name: str, dedicated: bool) -> bool:
    if name.startswith("mtp.embed_tokens."):
        return dedicated
    if name.startswith("mtp.layers."):
        return name.startswith("mtp.layers.0.")
    return not name.startswith("mtp.lm_head.")


def published(shapes: Mapping[str, tuple[int, ...]], config: Config) -> bool:
    """As mlx-lm: a published checkpoint holds its experts one by one."""
    return any(
        name.startswith("model.layers.") and name.endswith(".mlp.experts.0.up_proj.weight")
        for name in shapes
    )


def layers(config: Config) -> list[nn.Module]:
    """One full-attention layer, whose MLP is a mixture as the model's are."""
    args = ModelArgs.from_dict(dict(config))
    args = dataclasses.replace(args, mlp_only_layers=[], decoder_sparse_step=1)
    return [Qwen3NextDecoderLayer(args, args.full_attention_interval - 1)]


FAMILY = Family(
    name="qwen3_next",
    model_types=frozenset({"qwen3_next"}),
    owns=owns,
    read=read,
    layers=layers,
    original=published,
    stripped="mtp.",
)
