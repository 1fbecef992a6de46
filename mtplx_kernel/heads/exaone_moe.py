"""The head of K-EXAONE: one layer with a dense MLP and, unless the config says so, no window.

Layout: `mtp.{fc,pre_fc_norm_embedding,pre_fc_norm_hidden,norm}` and `mtp.layers.0.*`. Attention is
global, without rotary positions, unless `mtp_layer_types` says "sliding_attention". Checked on a
tiny checkpoint in that layout, both kinds, against a NumPy transcription of the formula, which was
checked against the layer of transformers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.exaone_moe import DecoderLayer, ModelArgs

from mtplx_kernel.heads.native import Config, Family
from mtplx_kernel.heads.qwen3_next import owns, read

SLIDING = "sliding_attention"


def _kind(config: Config) -> str:
    return str((config.get("mtp_layer_types") or ["full_attention"])[0])


def _window(config: Config) -> int:
    return int((config.get("mtp_sliding_windows") or [config["sliding_window"]])[0])


def layers(config: Config) -> list[nn.Module]:
    """One layer of the head's own kind, put in front of the model's kinds."""
    args = ModelArgs.from_dict(dict(config))
    kinds = [_kind(config), *args.layer_types]
    args = dataclasses.replace(args, layer_types=kinds, is_moe_layer=[False])
    return [DecoderLayer(args, 0)]


def caches(config: Config) -> list[Any]:
    """One, which keeps the window where there is one."""
    return [RotatingKVCache(_window(config)) if _kind(config) == SLIDING else KVCache()]


FAMILY = Family(
    name="exaone_moe",
    model_types=frozenset({"exaone_moe"}),
    owns=owns,
    read=read,
    layers=layers,
    caches=caches,
    stripped="mtp.",
)
