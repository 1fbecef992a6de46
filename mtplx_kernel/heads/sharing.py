"""A head's own embedding and output head, dropped where they only repeat the target's."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.native import NativeHead

ROWS = 4096
"""Ids compared at a time: a whole table of a big model is gigabytes."""


def share_equal_ends(head: NativeHead, shared: Shared) -> None:
    """Let a head use the target's embedding and output head where its own are the same.

    Several families publish copies, gigabytes in the large ones. They are compared value by value
    with what the target holds in memory; an end that differs at all stays the head's own, as does
    one whose copy in the target has been quantised.

    Parameters
    ----------
    head
        Its own ends are set to None where they are dropped.
    shared
        The target's.
    """
    if head.embed is not None and _embeds_alike(head.embed, shared):
        head.embed = None
    if head.output is not None and _same_parameters(head.output, shared.output):
        head.output = None


def _embeds_alike(own: nn.Module, shared: Shared) -> bool:
    count = next(iter(_parameters(own).values())).shape[0]
    for first in range(0, count, ROWS):
        ids = mx.arange(first, min(first + ROWS, count))
        if not _equal(own(ids), shared.embed(ids)):
            return False
    return True


def _same_parameters(own: nn.Module, other: nn.Module) -> bool:
    mine, theirs = _parameters(own), _parameters(other)
    if mine.keys() != theirs.keys():
        return False
    return all(_equal(array, theirs[name]) for name, array in mine.items())


def _equal(one: mx.array, other: mx.array) -> bool:
    return one.shape == other.shape and bool(mx.array_equal(one, other))


def _parameters(module: nn.Module) -> dict[str, mx.array]:
    parameters: Any = tree_flatten(module.parameters(), destination={})
    return dict(parameters)
