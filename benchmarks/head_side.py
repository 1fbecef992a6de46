"""A model that decodes with its head alone: nothing drafts from the request's own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from benchmarks.measure import BenchmarkFailed
from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep, Outcome
from mtplx_kernel.decoding.text import TextStream
from mtplx_kernel.engine.fit import fit
from mtplx_kernel.heads.base import Head
from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.heads.distilled_file import load_distilled
from mtplx_kernel.models import catalog
from mtplx_kernel.models.head import AUTO, NONE, shipped_name
from mtplx_kernel.models.load import LoadedModel, load


@dataclass(frozen=True, slots=True)
class Cycle:
    """One verify of one row.

    Attributes
    ----------
    judged
        Drafts that were held against the target: the right ones, and the first wrong one.
    right
        How many of them were right.
    tokens
        What the cycle gave, an end token included.
    """

    judged: int
    right: int
    tokens: int

    @classmethod
    def of(cls, outcome: Outcome) -> Cycle:
        """Read a cycle's outcome: drafts after an end token that was drafted are not judged."""
        tokens = len(outcome.tokens) + outcome.end_token
        wrong = outcome.accepted < min(tokens, outcome.drafted)
        return cls(outcome.accepted + wrong, outcome.accepted, tokens)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decoded, without an end token, and how."""

    ids: tuple[int, ...]
    cycles: tuple[Cycle, ...]


class HeadSide:
    """Decodes one prompt after another. Make it and use it on one thread.

    Parameters
    ----------
    loaded
        The model.
    head
        What drafts; None drafts nothing.

    Raises
    ------
    BenchmarkFailed
        If the model's caches cannot take tokens back, so that nothing can be drafted.
    """

    def __init__(self, loaded: LoadedModel, head: Head | None) -> None:
        self.loaded, self.head = loaded, head
        fitted, caches, _ = fit(loaded)
        if fitted.rollback_reason is not None:
            raise BenchmarkFailed(
                f"{loaded.facts.name} cannot draft: {fitted.rollback_reason}; take another --model"
            )
        drafter = None
        if head is not None:
            drafter = HeadDrafter(head, SlotCaches(head, caches.slots), loaded.target.vocabulary)
        self._step = DecodeStep(loaded.target, caches, drafter, look_ahead=fitted.look_ahead)

    @property
    def columns(self) -> int:
        """How many ids the head may draft."""
        listed = None if self.head is None else self.head.vocabulary
        return self.loaded.target.vocabulary if listed is None else listed.size

    def answer(
        self, prompt_ids: Sequence[int], mode: GenerationMode, params: SamplingParams, seed: int = 0
    ) -> Answer:
        """Decode until the end token or `params.max_tokens`.

        Raises
        ------
        BenchmarkFailed
            If the model or the head fails: what was counted until then would mean nothing.
        """
        row = self._row(prompt_ids, mode, params, seed)
        cycles: list[Cycle] = []
        try:
            self._step.admit(row)
            if row.prefill_left:
                self._step.prefill([row], [row.prefill_left])
            ended = None
            while ended is None:
                outcome = self._step.cycle([row])[0]
                if outcome.error or row.draft_error:
                    raise BenchmarkFailed(f"decoding failed: {outcome.error or row.draft_error}")
                cycles.append(Cycle.of(outcome))
                ended = outcome.ended
        finally:
            self._step.release(row)
        return Answer(tuple(row.output), tuple(cycles))

    def margin(self, ids: Sequence[int]) -> float:
        """Difference between the two largest logits after some ids."""
        target = self.loaded.target
        logits = target.logits(target.forward(mx.array([list(ids)]), None)[0, -1:])[0]
        top = mx.sort(logits)[-2:]
        return float(top[1] - top[0])

    def _row(
        self, prompt_ids: Sequence[int], mode: GenerationMode, params: SamplingParams, seed: int
    ) -> Row:
        facts = self.loaded.facts
        return Row(
            request_id="benchmark",
            ids=list(prompt_ids),
            params=params,
            seed=seed,
            mode=mode,
            end_ids=facts.end_ids,
            context_length=facts.context_length,
            text=TextStream(self.loaded.tokenizer, prompt_ids),
        )


def load_side(name: str, head: str = AUTO, columns: int | None = None) -> HeadSide:
    """Load a model and its head.

    Parameters
    ----------
    name
        A catalog name, a local mlx-lm folder or a hub id.
    head
        As `mtplx_kernel.load` takes it.
    columns
        Draft only the so many most frequent ids; None takes what is usual on this device.

    Raises
    ------
    BenchmarkFailed
        If there is no head, or none whose ids can be chosen.
    ModelNotFound, ModelUnusable
        If one of them cannot be loaded.
    """
    source = catalog.resolve(name)
    loaded = load(source.path, source.name, head, shipped_name(source))
    if loaded.head is None and head != NONE:
        raise BenchmarkFailed(
            f"no head was found for {source.name}: give the path of one as --head, or --head none"
        )
    if columns is not None:
        return HeadSide(loaded, _narrowed(loaded, columns))
    return HeadSide(loaded, None if loaded.head is None else loaded.head.head)


def _narrowed(loaded: LoadedModel, columns: int) -> Head:
    """The loaded head with another number of ids that it may draft."""
    if loaded.head is None or not isinstance(loaded.head.head, DistilledHead):
        raise BenchmarkFailed(
            "only distilled heads draft a part of the vocabulary: leave out --columns, or give "
            "the path of one as --head"
        )
    target = loaded.target
    norm = target.final_norm
    assert norm is not None  # the head was loaded for it
    return load_distilled(
        Path(loaded.head.facts.source),
        shared=target.shared,
        base_norm=norm,
        hidden=norm.shape[0],
        vocabulary=target.vocabulary,
        layers=len(target.inner.layers),
        columns=columns,
        dtype=norm.dtype if loaded.facts.device == "gpu" else mx.float32,
    )
