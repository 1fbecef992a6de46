"""A head with a wider feed-forward layer that gives the same drafts, and has more to learn with."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.distilled import DistilledHead


def check_width(width: int | None, now: int) -> None:
    """Refuse a width that a feed-forward layer of `now` columns cannot be widened to.

    Raises
    ------
    InvalidRequest
        If it is less.
    """
    if width is not None and width < now:
        raise InvalidRequest(f"the head is {now} wide and cannot become narrower; not {width}")


def widened(head: DistilledHead, shared: Shared, width: int, seed: int) -> DistilledHead:
    """Copy a head into a wider one, whose new columns read at random and give nothing yet.

    Parameters
    ----------
    head
        The head; it is left as it is.
    shared
        The target's embedding and output head.
    width
        Columns of the new feed-forward layer, at least as many as now.
    seed
        Of what the new columns read.
    """
    now = head.config.intermediate
    check_width(width, now)
    made = DistilledHead(replace(head.config, intermediate=width), shared, head.vocabulary)
    parameters = dict(tree_flatten(head.parameters()))
    key = mx.random.key(seed)
    for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
        key, own = mx.random.split(key)
        old = parameters[name]
        size = mx.sqrt(mx.mean(mx.square(old)))
        new = size * mx.random.normal((width - now, old.shape[1]), dtype=old.dtype, key=own)
        parameters[name] = mx.concatenate([old, new])
    old = parameters["mlp.down_proj.weight"]
    nothing = mx.zeros((old.shape[0], width - now), old.dtype)
    parameters["mlp.down_proj.weight"] = mx.concatenate([old, nothing], axis=1)
    made.load_weights(list(parameters.items()))
    mx.eval(made.parameters())
    return made
