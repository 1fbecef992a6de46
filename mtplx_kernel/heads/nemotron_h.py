"""The head of Nemotron 3: an attention block, then a block of experts, without positions.

Layout: `mtp.layers.0.{enorm,hnorm,eh_proj,norm,mixer.*}` and `mtp.layers.1.{norm,mixer.*,
final_layernorm}`, one number for each letter of the config's `mtp_hybrid_override_pattern`; both
ends are the model's. Later heads, where a checkpoint has several, are not run. Checked on a tiny
checkpoint in that layout against the blocks of transformers, put together as vLLM does.
"""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.nemotron_h import ModelArgs, NemotronHBlock

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.experts import stacked
from mtplx_kernel.heads.native import Config, Family, Weights

BLOCK = re.compile(r"mtp\.layers\.(\d+)\.(.*)")
FUSION = {"enorm.": "enorm.", "hnorm.": "hnorm.", "eh_proj.": "fc.", "final_layernorm.": "norm."}
SWITCH = {"up_proj": "fc1", "down_proj": "fc2"}
BIAS = "e_score_correction_bias"
LETTERS = {"full_attention": "*", "attention": "*", "moe": "E", "mlp": "-"}


class Blocks(nn.Module):
    """The blocks of one head, one of which attends.

    Parameters
    ----------
    args
        The model's.
    pattern
        A letter for each block: attention "*", experts "E", MLP "-".
    """

    def __init__(self, args: ModelArgs, pattern: str) -> None:
        super().__init__()
        self.blocks = [NemotronHBlock(args, letter) for letter in pattern]

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """States of shape (rows, width, hidden), from states of the same shape."""
        for block in self.blocks:
            x = block(x, mask=mask, cache=cache)
        return x


def pattern(config: Config) -> str:
    """The letters of the head's blocks.

    Raises
    ------
    ModelUnusable
        If there is not exactly one block that attends, or a block of an unknown kind.
    """
    kinds = config.get("mtp_layers_block_type") or ["attention", "moe"]
    letters = config.get("mtp_hybrid_override_pattern") or [LETTERS.get(k, "?") for k in kinds]
    joined = "".join(letters)
    if joined.count("*") != 1 or set(joined) - set(LETTERS.values()):
        raise ModelUnusable(
            f"a head of blocks {joined!r} cannot be run: it must hold one attention block (*) "
            "among experts (E) and MLPs (-); use mode ar or another checkpoint"
        )
    return joined


def owns(name: str, config: Config) -> bool:
    """Whether a tensor is the head's."""
    return name.startswith("mtp.")


def read(weights: Weights, config: Config) -> Weights:
    """Parameters of the first head, the experts of its blocks stacked."""
    count = len(pattern(config))
    named = {new: a for n, a in weights.items() if (new := _renamed(n, count)) is not None}
    for index in range(count):
        named = _switched(named, f"layers.0.blocks.{index}.mixer")
    return {n: a.astype(mx.float32) if n.endswith(BIAS) else a for n, a in named.items()}


def _renamed(name: str, count: int) -> str | None:
    """A parameter's name; None where it is of a later head."""
    block = BLOCK.match(name)
    if block is None:
        return name
    number, rest = int(block[1]), block[2]
    for old, new in FUSION.items():
        if rest.startswith(old):
            return new + rest.removeprefix(old) if number < count else None
    return f"layers.0.blocks.{number}.{rest}" if number < count else None


def _switched(weights: Weights, mixer: str) -> Weights:
    """Stack a block's experts under the names of mlx-lm's two-layer experts."""
    joined = stacked(weights, mixer)
    for old, new in SWITCH.items():
        for kind in ("weight", "scales", "biases"):
            array = joined.pop(f"{mixer}.switch_mlp.{old}.{kind}", None)
            if array is not None:
                joined[f"{mixer}.switch_mlp.{new}.{kind}"] = array
    return joined


def layers(config: Config) -> list[nn.Module]:
    """All blocks as one layer: they share one cache."""
    return [Blocks(ModelArgs.from_dict(dict(config)), pattern(config))]


FAMILY = Family(
    name="nemotron_h",
    model_types=frozenset({"nemotron_h"}),
    owns=owns,
    read=read,
    layers=layers,
    norm_eps=lambda config: float(config["layer_norm_epsilon"]),
    stripped="mtp.",
)
