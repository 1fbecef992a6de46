"""The heads of Step 3.5: three layers after the model's, each with norms and an output of its own.

Layout: `model.layers.N.{enorm,hnorm,eh_proj,shared_head.norm,shared_head.output}` and a decoder
layer, sometimes below `transformer.`, for N from the number of the model's layers on; norms lack 1
where the checkpoint is as published. They follow one another (`chained.py`), the states going on
before the norm; where there is one only, it is looped. Checked on tiny checkpoints in that layout
against a NumPy transcription of the formula, which, but for the limit of the MLP, was checked
against the layer that transformers has for Step 3.7.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.step3p5 import ModelArgs, Step3p5DecoderLayer

from mtplx_kernel.heads.names import renamed
from mtplx_kernel.heads.native import Config, Family, Weights

LAYER = re.compile(r"model\.layers\.(\d+)\.")
SLIDING = "sliding_attention"
BEGINNINGS = {
    "enorm.": "enorm.",
    "hnorm.": "hnorm.",
    "eh_proj.": "fc.",
    "shared_head.norm.": "norm.",
    "shared_head.output.": "output.",
    "shared_head.head.": "output.",
    "moe.gate.": "layers.0.mlp.gate.gate.",
    "moe.router_bias": "layers.0.mlp.gate.router_bias",
    "moe.": "layers.0.mlp.switch_mlp.",
    "share_expert.": "layers.0.mlp.share_expert.",
    "": "layers.0.",
}


def owns(name: str, config: Config) -> bool:
    """Whether a tensor is the heads'."""
    layer = LAYER.match(name)
    return layer is not None and int(layer[1]) >= config["num_hidden_layers"]


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of all heads, or of the only one. An embedding that they repeat is left out."""
    first = int(config["num_hidden_layers"])
    bare = {n.replace(".transformer.", "."): a for n, a in weights.items() if "embed" not in n}
    numbers = {int(layer[1]) - first for n in bare if (layer := LAYER.match(n)) is not None}
    named: Weights = {}
    for number in numbers:
        at = f"model.layers.{first + number}."
        own = {n.removeprefix(at): a for n, a in bare.items() if n.startswith(at)}
        place = f"heads.{number}." if len(numbers) > 1 else ""
        named |= {place + n: a for n, a in renamed(own, BEGINNINGS).items()}
    return named


def published(shapes: Mapping[str, tuple[int, ...]], config: Config) -> bool:
    """As mlx-lm: a published checkpoint names its mixtures `moe`."""
    return any(
        ".moe." in name or (".share_expert." in name and ".mlp." not in name) for name in shapes
    )


def layers(config: Config) -> list[nn.Module]:
    """The layer after the last of so many as the config says."""
    args = _reaching(config)
    return [Step3p5DecoderLayer(args, args.num_hidden_layers)]


def caches(config: Config) -> list[Any]:
    """One, which keeps the window where the layer has one."""
    args = _reaching(config)
    number = args.num_hidden_layers
    # mlx-lm's rule where the config names no kinds.
    slides = args.layer_types[number] == SLIDING if args.layer_types else number % 2 == 0
    return [RotatingKVCache(args.sliding_window) if slides else KVCache()]


def _reaching(config: Config) -> ModelArgs:
    """The config, its lists by layer reaching the first head, which short ones leave out."""
    args: ModelArgs = ModelArgs.from_dict(dict(config))
    kinds, bases = args.layer_types, args.rope_theta
    if kinds:
        kinds = _padded(kinds, args.num_hidden_layers, SLIDING)
        if isinstance(bases, list):
            same = kinds.index(kinds[args.num_hidden_layers])
            bases = _padded(bases, args.num_hidden_layers, bases[same])
    return dataclasses.replace(args, layer_types=kinds, rope_theta=bases)


def _padded(values: list[Any], number: int, filler: Any) -> list[Any]:
    return list(values) + [filler] * (number + 1 - len(values))


FAMILY = Family(
    name="step3p5",
    model_types=frozenset({"step3p5"}),
    owns=owns,
    read=read,
    layers=layers,
    caches=caches,
    hidden="pre",
    recycle="pre",
    norm_eps=lambda config: float(config.get("rms_norm_eps", 1e-5)),
    original=published,
)
