"""Experts of a mixture, stored one by one or fused, as mlx-lm's `switch_mlp` wants them."""

from __future__ import annotations

import mlx.core as mx

KINDS = ("weight", "scales", "biases")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def stacked(weights: dict[str, mx.array], block: str) -> dict[str, mx.array]:
    """Join a block's experts.

    Parameters
    ----------
    weights
        By name. Three layouts are known: `BLOCK.experts.E.gate_proj.weight` and so on for each
        expert E; `BLOCK.experts.gate_up_proj` of shape (experts, 2 * width, hidden), gate first,
        with `BLOCK.experts.down_proj`; and mlx-lm's own, which is left as it is.
    block
        Where the mixture stands, such as "layers.0.mlp".

    Returns
    -------
    dict
        With `BLOCK.switch_mlp.gate_proj.weight` and so on, shape (experts, width, hidden); the
        rest is as it was. Experts that do not make a whole row are left as they are.
    """
    joined = dict(weights)
    for kind in KINDS:
        for projection in PROJECTIONS:
            _join_row(joined, block, projection, kind)
        _split_fused(joined, block, kind)
    return joined


def _join_row(weights: dict[str, mx.array], block: str, projection: str, kind: str) -> None:
    names: list[str] = []
    while (name := f"{block}.experts.{len(names)}.{projection}.{kind}") in weights:
        names.append(name)
    if names:
        experts = [weights.pop(name) for name in names]
        weights[f"{block}.switch_mlp.{projection}.{kind}"] = mx.stack(experts)


def _split_fused(weights: dict[str, mx.array], block: str, kind: str) -> None:
    switch = f"{block}.switch_mlp"
    for end in ("", ".weight") if kind == "weight" else (f".{kind}",):
        fused = weights.pop(f"{block}.experts.gate_up_proj{end}", None)
        if fused is not None:
            gate, up = mx.split(fused, 2, axis=-2)
            weights[f"{switch}.gate_proj.{kind}"] = gate
            weights[f"{switch}.up_proj.{kind}"] = up
        down = weights.pop(f"{block}.experts.down_proj{end}", None)
        if down is not None:
            weights[f"{switch}.down_proj.{kind}"] = down
