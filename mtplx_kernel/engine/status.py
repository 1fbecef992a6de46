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
        What runs it; None once the engine is closed.
    rollback_reason
        Why its caches cannot take tokens back; None where they can.
    """
    return {
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
        "drafters": runner.drafters if runner else [],
        "verify_ms": _costs(runner),
        "caches": {"rollback": rollback_reason is None, "reason": rollback_reason},
        "scheduler": runner.snapshot() if runner else {},
        "memory_bytes": runner.memory_bytes if runner else 0,
    }


def _costs(runner: Runner | None) -> dict[str, float]:
    """Milliseconds of a forward by the tokens of its block, as measured at load."""
    if runner is None or runner.costs is None:
        return {}
    pairs = zip(runner.costs.tokens, runner.costs.seconds, strict=True)
    return {str(tokens): round(seconds * 1000, 2) for tokens, seconds in pairs}


def _blas(runner: Runner | None) -> dict[str, Any]:
    status = blas.ensure()
    return {
        "kind": status.kind,
        "description": status.description,
        "fast": status.fast,
        "threads": status.threads,
        "reason": status.reason or (runner.thread_reason if runner else None),
    }
