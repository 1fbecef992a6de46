"""The head of Qwen 3.5, 3.6 and 3.8, dense and mixture: one full-attention layer.

Layout: as Qwen3-Next (see `qwen3_next`), below `mtp.` or `language_model.mtp.`, with experts
fused or one by one. Checked on tiny checkpoints in that layout against a NumPy transcription of
the formula, which was checked against the layer of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlx.nn as nn
from mlx_lm.models.qwen3_5 import DecoderLayer, TextModelArgs

from mtplx_kernel.heads.native import Config, Family
from mtplx_kernel.heads.qwen3_next import owns, read


def published(shapes: Mapping[str, tuple[int, ...]], config: Config) -> bool:
    """As mlx-lm: a published checkpoint has its convolutions in torch's order."""
    return any("conv1d.weight" in name and shape[-1] != 1 for name, shape in shapes.items())


def layers(config: Config) -> list[nn.Module]:
    """One full-attention layer, whose MLP is a mixture where the model's are."""
    args = TextModelArgs.from_dict(dict(config))
    return [DecoderLayer(args, args.full_attention_interval - 1)]


FAMILY = Family(
    name="qwen3_5",
    model_types=frozenset({"qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"}),
    owns=owns,
    read=read,
    layers=layers,
    original=published,
    stripped="mtp.",
)
