"""Admission by memory: what a request's caches will take, and whether that can ever fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx_kernel.caching.footprint import Footprint
from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.params import GenerationMode
from mtplx_kernel.decoding.seats import lane
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.models.load import LoadedModel

SHARE = 0.85
"""Of the device's memory; the rest is for what a forward computes, and for other programs."""
GPU_KEYS = ("max_recommended_working_set_size", "total_memory", "memory_size")
"""Where MLX tells a device's memory: what Metal recommends to use of it, what CUDA has."""
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
GB = 10**9


@dataclass(frozen=True, slots=True)
class Memory:
    """What an engine may hold and what its requests take, as plain data that any thread may read.

    The slots of the caches are used by one request after another, and keep their buffers: what they
    hold already is part of what the next request needs, not beside it.

    Attributes
    ----------
    budget_bytes
        For weights and caches; None where the device's memory is unknown: then all is admitted.
    weights_bytes
        What the model and its head hold.
    model, head
        What a row takes in their caches.
    """

    budget_bytes: int | None
    weights_bytes: int
    model: Footprint
    head: Footprint

    def within(self, memory_gb: float | None) -> Memory:
        """The same with another budget; None leaves it as it is."""
        return self if memory_gb is None else replace(self, budget_bytes=round(memory_gb * GB))

    def admit(self, prompt_tokens: int, tokens: int, mode: GenerationMode) -> None:
        """Refuse what can never fit.

        Parameters
        ----------
        prompt_tokens, tokens
            Of the prompt, and of prompt and answer together at most.
        mode
            The request's. In mode ar the head's caches stay empty.

        Raises
        ------
        InvalidRequest
            If the caches of so many tokens do not fit beside the weights.
        """
        if self.budget_bytes is None:
            return
        row = self.model + self.head if mode is GenerationMode.MTP else self.model
        free = self.budget_bytes - self.weights_bytes
        need = row.nbytes(tokens)
        if need <= free:
            return
        most = (row.tokens(max(0, free)) or 0) - prompt_tokens
        todo = f"ask for at most {most} max_tokens" if most > 0 else "shorten the prompt"
        raise InvalidRequest(
            f"caches of {tokens} tokens take {_size(need)}, and {_size(max(0, free))} are free "
            f"({_size(self.budget_bytes)} less the weights): {todo}, or load with a larger "
            "memory_gb"
        )

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether rows of so many tokens have room together, in slots as long as the longest."""
        if self.budget_bytes is None or not tokens:
            return True
        need = lane(len(tokens)) * (self.model + self.head).nbytes(max(tokens))
        return need <= self.budget_bytes - self.weights_bytes

    def status(self) -> dict[str, Any]:
        """The budget, and what a token of a request takes, as plain data."""
        return {
            "memory_budget_bytes": self.budget_bytes,
            "bytes_a_token": self.model.position + self.head.position,
        }


def check_memory_gb(memory_gb: float | None) -> None:
    """Raise InvalidRequest unless it is None or a number above 0."""
    number = isinstance(memory_gb, int | float) and not isinstance(memory_gb, bool)
    if memory_gb is not None and not (number and 0 < memory_gb < float("inf")):
        raise InvalidRequest(f"memory_gb must be a number above 0, or None, not {memory_gb!r}")


def check_prefix_mb(prefix_mb: float) -> None:
    """Raise InvalidRequest unless it is a number of at least 0."""
    number = isinstance(prefix_mb, int | float) and not isinstance(prefix_mb, bool)
    if not (number and 0 <= prefix_mb < float("inf")):
        raise InvalidRequest(
            f"prefix_cache_mb must be a number of at least 0 (0 for none), not {prefix_mb!r}"
        )


def measure(loaded: LoadedModel, weights_bytes: int, *, rollback: bool) -> Memory:
    """Read from one forward's caches what requests will take. Nothing is computed for it.

    Parameters
    ----------
    weights_bytes
        What the model and its head hold.
    rollback
        Whether the model's caches take tokens back; only then the head is used.
    """
    target, tokens = loaded.target, mx.array([[0]])
    caches = SlotCaches(target.model) if rollback else StockCaches(target.model)
    span = Span(0, [0], [1])
    hidden = target.forward(tokens, caches.begin(span))
    caches.commit([True])
    of_head = Footprint()
    if loaded.head is not None and rollback:
        head_caches = SlotCaches(loaded.head.head)
        loaded.head.head.feed(target.features(hidden), tokens, head_caches.begin(span))
        head_caches.commit([True])
        of_head = head_caches.footprint
    return Memory(budget(), weights_bytes, caches.footprint, of_head)


def weights_bytes(loaded: LoadedModel) -> int:
    """Bytes of a model's and its head's weights."""
    arrays: Any = tree_flatten(loaded.target.model.parameters(), destination={})
    head = loaded.head.facts.nbytes if loaded.head is not None else 0
    return sum(int(array.nbytes) for array in arrays.values()) + head


def budget() -> int | None:
    """Bytes for weights and caches on the default device: a share of its memory."""
    if mx.default_device().type == mx.DeviceType.gpu:
        info = mx.device_info()
        total = next((int(info[key]) for key in GPU_KEYS if info.get(key)), None)
    else:
        total = physical_memory()
    return None if total is None else int(SHARE * total)


def physical_memory(limits: tuple[Path, ...] = CGROUP_LIMITS) -> int | None:
    """Bytes of the machine's memory, or of its container's where that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    for file in limits:
        try:
            total = min(total, int(file.read_text()))
        except (OSError, ValueError):  # no container, or one without a limit ("max")
            continue
    return total


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
