"""From a head's cycles to what is reported: acceptance by depth, and tokens a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.head_side import Answer, Cycle
from benchmarks.measure import EncodedPrompt
from mtplx_kernel.training.loops import loop_starts


@dataclass(frozen=True, slots=True)
class Text:
    """One answer to one prompt at one temperature.

    Attributes
    ----------
    diverges_at, margin
        Where mode ar first gave another token, and how far apart the two largest logits are there;
        None where it did not, or was not asked.
    """

    prompt: EncodedPrompt
    temperature: float
    answer: Answer
    diverges_at: int | None = None
    margin: float | None = None

    @property
    def loops_at(self) -> int | None:
        """Where the answer begins to repeat itself; None where it does not."""
        ids = self.answer.ids
        start = int(loop_starts(np.array([ids], np.int64))[0]) if ids else 0
        return start if start < len(ids) else None

    @property
    def counted(self) -> list[Cycle]:
        """The cycles that count: those that began before the answer began to repeat itself."""
        found, length, limit = [], 0, self.loops_at
        for cycle in self.answer.cycles:
            if limit is not None and length >= limit:
                break
            found.append(cycle)
            length += cycle.tokens
        return found


@dataclass(frozen=True, slots=True)
class Scores:
    """How well drafts were taken.

    Attributes
    ----------
    acceptance
        For each depth from 1, the share of judged drafts that were right: a draft is judged where
        all before it were right. None where none was judged.
    tokens_a_cycle
        Tokens for each forward of the target.
    """

    acceptance: tuple[float | None, ...]
    tokens_a_cycle: float


def pooled(cycles: Sequence[Cycle], depth: int) -> Scores:
    """Scores of cycles together, for drafts down to a depth."""
    shares: list[float | None] = []
    for judged, right in zip(*by_depth(cycles, depth), strict=True):
        shares.append(right / judged if judged else None)
    return Scores(tuple(shares), sum(cycle.tokens for cycle in cycles) / len(cycles))


def by_depth(cycles: Sequence[Cycle], depth: int) -> tuple[list[int], list[int]]:
    """How many drafts were judged at each depth from 1, and how many of them were right."""
    depths = range(1, depth + 1)
    judged = [sum(cycle.judged >= d for cycle in cycles) for d in depths]
    return judged, [sum(cycle.right >= d for cycle in cycles) for d in depths]


def by_domain(texts: Sequence[Text], depth: int) -> dict[str, Scores]:
    """Scores of each domain: its texts' cycles together."""
    cycles: dict[str, list[Cycle]] = {}
    for text in texts:
        cycles.setdefault(text.prompt.domain, []).extend(text.counted)
    return {domain: pooled(found, depth) for domain, found in cycles.items()}


def named(scores: Scores, prefix: str) -> dict[str, float]:
    """Scores as the report names them; what was not judged is left out."""
    found = {f"{prefix}_acceptance_{d}": a for d, a in enumerate(scores.acceptance, start=1)}
    found[f"{prefix}_tokens_a_cycle"] = scores.tokens_a_cycle
    return {name: value for name, value in found.items() if value is not None}


def averages(values: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean over domains of each name's values by domain."""
    return {name: mean(found.values()) for name, found in values.items()}


def values_by_domain(texts: Sequence[Text], depth: int) -> dict[str, dict[str, float]]:
    """For each score and temperature, its value in each domain that has one."""
    values: dict[str, dict[str, float]] = {}
    for temperature in dict.fromkeys(text.temperature for text in texts):
        of_it = [text for text in texts if text.temperature == temperature]
        for domain, scores in by_domain(of_it, depth).items():
            for name, value in named(scores, label(temperature)).items():
                values.setdefault(name, {})[domain] = value
    return values


def label(temperature: float) -> str:
    """How reports call a temperature."""
    return f"t{temperature:g}" if temperature else "greedy"


def table(texts: Sequence[Text], depth: int) -> list[dict[str, Any]]:
    """One plain row for each text."""
    return [_row(text, depth) for text in texts]


def _row(text: Text, depth: int) -> dict[str, Any]:
    counted = text.counted
    judged, right = by_depth(counted, depth)
    return {
        "prompt": text.prompt.name,
        "domain": text.prompt.domain,
        "temperature": text.temperature,
        "prompt_tokens": len(text.prompt.ids),
        "answered": len(text.answer.ids),
        "loops_at": text.loops_at,
        "cycles": len(counted),
        "tokens": sum(cycle.tokens for cycle in counted),
        "judged": judged,
        "right": right,
        "diverges_at": text.diverges_at,
        "top2_margin": text.margin,
    }
