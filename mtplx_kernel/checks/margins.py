"""How close two tokens were where two runs part, and how close is too close for the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

SETTLED = 0.0
"""Rows do not depend on their neighbours: only an exact tie is one."""
ROUNDING = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.5}
"""Log-probabilities closer than this can change places by rounding alone, by the coarsest type that
the model computes with. A logit of about 20 is kept to 2e-6, 0.016 or 0.125 in these types; the
layers before it add to that."""
GPU_FLOAT32 = 0.02
"""GPUs may multiply float32 in formats with 10 bits after the point."""
BY_BLOCK = ("deepseek_v", "glm4_moe_lite", "kimi", "longcat", "mamba", "minicpm3", "nemotron_h")
"""Families that compute one token by another formula than a block of them."""


def tolerance(precision: str, device: str, blas: str, family: str) -> float:
    """The largest gap in log-probability that rounding explains.

    Parameters
    ----------
    precision
        Type of the weights in memory, such as "float32" or "4-bit, bfloat16".
    device, blas
        "cpu" or "gpu", and the kind of BLAS.
    family
        The model's type.
    """
    kinds = [ROUNDING[kind] for kind in ROUNDING if _names(precision, kind)]
    coarsest = max(kinds, default=ROUNDING["bfloat16"])
    if device == "gpu":
        return max(coarsest, GPU_FLOAT32)
    return SETTLED if blas == "stock" and not family.startswith(BY_BLOCK) else coarsest


def _names(precision: str, kind: str) -> bool:
    return kind in precision.replace(",", " ").split()


@dataclass(frozen=True, slots=True)
class Scores:
    """What each next token was worth at one place; the largest is the model's choice.

    Attributes
    ----------
    by_id
        Log-probability, and with sampling the noise of the draw, in units of the former.
    end_ids
        Tokens that end the text: all of them are one choice.
    """

    by_id: dict[int, float]
    end_ids: Collection[int]

    @classmethod
    def of(
        cls,
        logprobs: Sequence[tuple[int, float]],
        end_ids: Collection[int],
        temperature: float = 0.0,
        noise: Sequence[float] = (),
    ) -> Scores:
        """Scores of a greedy choice, or of a draw with known noise.

        Parameters
        ----------
        logprobs
            Every token and its log-probability.
        noise
            Gumbel noise by token id; the draw is the largest logprob / temperature + noise.
        """
        if temperature == 0:
            return cls(dict(logprobs), end_ids)
        return cls({i: logprob + temperature * noise[i] for i, logprob in logprobs}, end_ids)

    def of_token(self, token: int | None) -> float:
        """The score of a token; None is the end of the text."""
        if token is not None:
            return self.by_id.get(token, -math.inf)
        return max((self.by_id.get(i, -math.inf) for i in self.end_ids), default=-math.inf)

    def margin(self, *tokens: int | None) -> float:
        """How far the worst of some tokens is from the best of all.

        Of two tokens of which one is the best, it is the gap between them.
        """
        return max(self.by_id.values()) - min(self.of_token(token) for token in tokens)
