"""The part of the status that tells of the model and of what runs it."""

from __future__ import annotations

from typing import Any

from mtplx_kernel.engine.runner import Runner
from mtplx_kernel.models import blas
from mtplx_kernel.models.load import ModelFacts


def describe(
    facts: ModelFacts, runner: Runner | None, rollback_reason: str | None
) -> dict[str, Any]:
    """Model, device, BLAS, drafters, caches, scheduler and memory, as plain data.

    Parameters
    ----------
    facts
        The loaded model.
    runner
        What runs it; None once the engine is closed or dead.
    rollback_reason
        Why its caches cannot take tokens back; None where they can.

    Returns
    -------
    dict
        `memory_bytes` is what this engine's weights and caches hold, none once it has ended.
        What only a runner can tell (drafters, head, head_reason, verify_ms, scheduler, and that
        memory by its parts) is left out without one.
    """
    known: dict[str, Any] = {
        "model": {
            "name": facts.name,
            "path": facts.path,
            "family": facts.family,
            "parameters": facts.parameters,
            "precision": facts.precision,
            "context_length": facts.context_length,
        },
        "device": facts.device,
        "blas": _blas(runner),
        "caches": {"rollback": rollback_reason is None, "reason": rollback_reason},
    }
    if runner is None:
        return {**known, "memory_bytes": 0}
    weights, caches = runner.weights_bytes, runner.caches_bytes
    prefixes = runner.prefix.nbytes if runner.prefix is not None else 0
    return {
        **known,
        "drafters": runner.drafters,
        "head": _head(runner),
        "head_reason": runner.head_reason,
        "verify_ms": _costs(runner),
        "costs_from": runner.fit.origin,
        "scheduler": runner.modes.snapshot(),
        "prefix_cache": runner.prefix.snapshot() if runner.prefix is not None else {},
        "memory_bytes": weights + caches + prefixes,
        "weights_bytes": weights,
        "caches_bytes": caches,
    }


def _head(runner: Runner) -> dict[str, Any]:
    """What head drafts, and what its parts cost in milliseconds; empty without one."""
    head, costs = runner.head, runner.fit.measured
    if head is None:
        return {}
    return {
        "name": head.family,
        "source": head.source,
        "parameters": head.parameters,
        "bytes": head.nbytes,
        "draft_vocabulary": head.columns,
        "ms": {part: round(s * 1000, 2) for part, s in costs.head.items()} if costs else {},
    }


def _costs(runner: Runner) -> dict[str, float]:
    """Milliseconds of a forward by the tokens of its block, as measured at load."""
    costs = runner.fit.measured
    if costs is None:
        return {}
    pairs = zip(costs.tokens, costs.seconds, strict=True)
    return {str(tokens): round(seconds * 1000, 2) for tokens, seconds in pairs}


def _blas(runner: Runner | None) -> dict[str, Any]:
    status = blas.current()
    assert status is not None  # decided at load
    return {
        "kind": status.kind,
        "description": status.description,
        "fast": status.fast,
        "threads": status.threads,
        "reason": status.reason or (runner.thread_reason if runner else None),
    }
