"""One prompt answered in both generation modes, and how close the choice was where they part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mtplx_kernel.checks import margins
from mtplx_kernel.checks.asking import ask
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import RequestFailed

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

END = "(end)"
UNKNOWN = "(no token)"


class Result(StrEnum):
    """What a check came to."""

    EQUAL = "equal"
    NEAR_TIE = "near tie"
    """The runs part where the model's choice is within the rounding of the arithmetic."""
    HOLDS = "holds"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How both runs of a comparison choose tokens."""

    temperature: float = 0.0
    seed: int = 0

    @property
    def name(self) -> str:
        """In words."""
        return f"T = {self.temperature:g}, seed {self.seed}" if self.temperature else "greedy"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two runs part.

    Attributes
    ----------
    position
        The place of the first differing token in the output, from 0.
    ar, mtp
        The text of the token that each mode has there.
    margin
        How far the worse of the two was from the model's choice, in log-probability.
    tolerance
        What rounding explains.
    """

    position: int
    ar: str
    mtp: str
    margin: float
    tolerance: float

    @property
    def explained(self) -> bool:
        """Whether rounding explains it."""
        return self.margin <= self.tolerance

    def __str__(self) -> str:
        sign = "<=" if self.explained else ">"
        return (
            f"token {self.position}: ar {self.ar!r}, mtp {self.mtp!r}, "
            f"margin {self.margin:.2g} {sign} {self.tolerance:g}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt in both modes.

    Attributes
    ----------
    depth
        Drafts a cycle; None where the engine chose.
    tokens
        How many tokens of the mode mtp stand against those of mode ar.
    drafted, accepted
        Drafts of the mtp run.
    divergence
        None where the answers are equal.
    problem
        What went wrong with a request, and what a drafter failed with.
    """

    prompt: str
    sampling: Sampling
    depth: int | None
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    divergence: Divergence | None = None
    problem: str | None = None
    failed: bool = False

    @property
    def result(self) -> Result:
        """Equal, explained by rounding, or failed."""
        if self.failed:
            return Result.FAILED
        if self.divergence is None:
            return Result.EQUAL
        return Result.NEAR_TIE if self.divergence.explained else Result.FAILED


class Comparer:
    """Runs prompts in both modes of one engine.

    Parameters
    ----------
    engine
        A loaded engine that can draft.

    Attributes
    ----------
    tolerance
        The largest margin that the arithmetic of this engine explains.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        facts, blas = engine.facts, engine.status()["blas"]
        self.tolerance = margins.tolerance(
            facts.precision, facts.device, blas["kind"], facts.family
        )

    def compare(
        self,
        name: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        max_tokens: int,
        depth: int | None,
    ) -> Comparison:
        """Answer a prompt in modes ar and mtp."""
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
        }
        try:
            ar = ask(self._engine, ids, mode="ar", **options)
            mtp = ask(self._engine, ids, mode="mtp", depth=depth, **options)
        except RequestFailed as error:
            return Comparison(name, sampling, depth, problem=str(error), failed=True)
        return Comparison(
            prompt=name,
            sampling=sampling,
            depth=depth,
            tokens=len(mtp.token_ids),
            drafted=sum(mtp.stats.drafted_by_depth or ()),
            accepted=sum(mtp.stats.accepted_by_depth or ()),
            divergence=self.divergence(ids, ar, mtp, sampling),
            problem=mtp.stats.draft_error,
        )

    def divergence(
        self, ids: Sequence[int], ar: Generation, mtp: Generation, sampling: Sampling
    ) -> Divergence | None:
        """Where two answers to one prompt part, and by how much; None where they are equal."""
        position = _parting(ar, mtp)
        if position is None:
            return None
        known = all(_known(generation, position) for generation in (ar, mtp))
        scores = self._scores([*ids, *ar.token_ids[:position]], sampling)
        tokens = (_token(ar, position), _token(mtp, position))
        return Divergence(
            position,
            ar=self._text(ar, position),
            mtp=self._text(mtp, position),
            margin=scores.margin(*tokens) if known else math.inf,
            tolerance=self.tolerance,
        )

    def _scores(self, before: Sequence[int], sampling: Sampling) -> margins.Scores:
        facts = self._engine.facts
        logprobs = self._engine.inspect(before, top=facts.vocabulary)
        noise = _noise(sampling.seed, len(before), facts.vocabulary) if sampling.temperature else ()
        return margins.Scores.of(logprobs, facts.end_ids, sampling.temperature, noise)

    def _text(self, generation: Generation, position: int) -> str:
        token = _token(generation, position)
        if token is None:
            return END if _known(generation, position) else UNKNOWN
        return str(self._engine.tokenizer.decode([token]))


def _parting(ar: Generation, mtp: Generation) -> int | None:
    """The first place where two answers differ: in a token, or in having ended there."""
    pairs = zip(ar.token_ids, mtp.token_ids, strict=False)
    differing = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if differing is not None:
        return differing
    same = ar.finish_reason is mtp.finish_reason and len(ar.token_ids) == len(mtp.token_ids)
    return None if same else min(len(ar.token_ids), len(mtp.token_ids))


def _token(generation: Generation, position: int) -> int | None:
    ids = generation.token_ids
    return ids[position] if position < len(ids) else None


def _known(generation: Generation, position: int) -> bool:
    """Whether there is a token, or the text ended by itself: None then stands for an end token."""
    return position < len(generation.token_ids) or generation.finish_reason is FinishReason.STOP


def _noise(seed: int, position: int, size: int) -> Sequence[float]:
    """The noise of a draw, on the calling thread: it needs no model."""
    import mlx.core as mx

    from mtplx_kernel.decoding.sampling import noise

    with mx.stream(mx.cpu):
        return noise(seed, position, size).tolist()  # type: ignore[return-value]
