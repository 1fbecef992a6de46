"""One prompt answered in two ways, and how close the choice was where the answers part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from mtplx_kernel.checks import margins
from mtplx_kernel.checks.asking import ask
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import RequestFailed

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

END = "(end)"
UNKNOWN = "(no token)"
MODES = ("ar", "mtp")


class Result(StrEnum):
    """What a check came to."""

    EQUAL = "equal"
    NEAR_TIE = "near tie"
    """The runs part where the model's choice is within the rounding of the arithmetic."""
    HOLDS = "holds"
    UNTESTED = "too few draws"
    """No statistic can be had from them."""
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
class Question:
    """A prompt, and how it is answered.

    Attributes
    ----------
    name
        Of the prompt.
    ids
        The prompt.
    depth
        Drafts a cycle in mode mtp; None where the engine chooses.
    """

    name: str
    ids: Sequence[int]
    sampling: Sampling
    max_tokens: int
    depth: int | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two runs part.

    Attributes
    ----------
    runs
        What the two are called.
    position
        The place of the first differing token in the output, from 0.
    expected, found
        The text of the token that the first and the second have there.
    margin
        How far the worse of the two was from the model's choice, in log-probability.
    tolerance
        What rounding explains.
    """

    runs: tuple[str, str]
    position: int
    expected: str
    found: str
    margin: float
    tolerance: float

    @property
    def explained(self) -> bool:
        """Whether rounding explains it."""
        return self.margin <= self.tolerance

    def __str__(self) -> str:
        sign = "<=" if self.explained else ">"
        first, second = self.runs
        return (
            f"token {self.position}: {first} {self.expected!r}, {second} {self.found!r}, "
            f"margin {self.margin:.2g} {sign} {self.tolerance:g}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question answered in two ways.

    Attributes
    ----------
    depth
        Drafts a cycle; None where the engine chose.
    tokens
        How many tokens of the second answer stand against those of the first.
    drafted, accepted
        Drafts of the second run.
    divergence
        None where the answers are equal.
    problem
        What went wrong with a request, and what a drafter failed with.
    answer
        The second answer; None where a request failed.
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
    answer: Generation | None = field(default=None, repr=False)

    @property
    def result(self) -> Result:
        """Equal, explained by rounding, or failed."""
        if self.failed:
            return Result.FAILED
        if self.divergence is None:
            return Result.EQUAL
        return Result.NEAR_TIE if self.divergence.explained else Result.FAILED


class Comparer:
    """Has questions answered by one engine, and holds the answers against each other.

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

    def compare(self, question: Question) -> Comparison:
        """Answer a question in modes ar and mtp."""
        try:
            ar, mtp = self.answer(question, "ar"), self.answer(question, "mtp")
        except RequestFailed as error:
            return failure(question, error)
        return self.against(question, ar, mtp)

    def answer(self, question: Question, mode: str) -> Generation:
        """Answer a question in a generation mode.

        Raises
        ------
        RequestFailed
            If the request ends with an error.
        """
        return ask(
            self._engine,
            question.ids,
            mode=mode,
            depth=question.depth if mode == "mtp" else None,
            max_tokens=question.max_tokens,
            temperature=question.sampling.temperature,
            seed=question.sampling.seed,
        )

    def against(
        self,
        question: Question,
        expected: Generation,
        found: Generation,
        runs: tuple[str, str] = MODES,
    ) -> Comparison:
        """Hold an answer against another."""
        return Comparison(
            prompt=question.name,
            sampling=question.sampling,
            depth=question.depth,
            tokens=len(found.token_ids),
            drafted=sum(found.stats.drafted_by_depth or ()),
            accepted=sum(found.stats.accepted_by_depth or ()),
            divergence=self.divergence(question.ids, expected, found, question.sampling, runs),
            problem=found.stats.draft_error,
            answer=found,
        )

    def divergence(
        self,
        ids: Sequence[int],
        expected: Generation,
        found: Generation,
        sampling: Sampling,
        runs: tuple[str, str] = MODES,
    ) -> Divergence | None:
        """Where two answers to one prompt part, and by how much; None where they are equal."""
        position = _parting(expected, found)
        if position is None:
            return None
        known = all(_known(generation, position) for generation in (expected, found))
        scores = self._scores([*ids, *expected.token_ids[:position]], sampling)
        tokens = (_token(expected, position), _token(found, position))
        return Divergence(
            runs,
            position,
            expected=self._text(expected, position),
            found=self._text(found, position),
            margin=scores.margin(*tokens) if known else math.inf,
            tolerance=self.tolerance,
        )

    def _scores(self, before: Sequence[int], sampling: Sampling) -> margins.Scores:
        facts = self._engine.facts
        logprobs = self._engine.inspect(before, top=facts.vocabulary)
        warm = sampling.temperature
        noise = noise_of(sampling.seed, len(before), facts.vocabulary) if warm else ()
        return margins.Scores.of(logprobs, facts.end_ids, warm, noise)

    def _text(self, generation: Generation, position: int) -> str:
        token = _token(generation, position)
        if token is None:
            return END if _known(generation, position) else UNKNOWN
        return str(self._engine.tokenizer.decode([token]))


def failure(question: Question, error: RequestFailed) -> Comparison:
    """A question with a request that ended with an error."""
    return Comparison(
        question.name, question.sampling, question.depth, problem=str(error), failed=True
    )


def noise_of(seed: int, position: int, size: int) -> list[float]:
    """The noise of the draw of a sampled token, computed on the calling thread.

    Parameters
    ----------
    seed
        The request's.
    position
        How many tokens stand before, those of the prompt included.
    size
        Of the vocabulary.
    """
    import mlx.core as mx  # here, as a report needs no MLX

    from mtplx_kernel.decoding.sampling import noise

    with mx.stream(mx.cpu):
        return noise(seed, position, size).tolist()  # type: ignore[return-value]


def _parting(expected: Generation, found: Generation) -> int | None:
    """The first place where two answers differ: in a token, or in having ended there."""
    pairs = zip(expected.token_ids, found.token_ids, strict=False)
    parted = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if parted is not None:
        return parted
    sizes = len(expected.token_ids), len(found.token_ids)
    same = expected.finish_reason is found.finish_reason and sizes[0] == sizes[1]
    return None if same else min(sizes)


def _token(generation: Generation, position: int) -> int | None:
    ids = generation.token_ids
    return ids[position] if position < len(ids) else None


def _known(generation: Generation, position: int) -> bool:
    """Whether there is a token, or the text ended by itself: None then stands for an end token."""
    return position < len(generation.token_ids) or generation.finish_reason is FinishReason.STOP
