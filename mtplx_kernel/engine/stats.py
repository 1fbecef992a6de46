"""What a request cost, derived from its decode window alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

from mtplx_kernel.decoding.params import GenerationMode
from mtplx_kernel.engine.timeline import DecodeWindow

COHORT_MODES = ("mtp_batch", "mtp_cohort_experimental")
SOLO, BATCH = "solo", "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStats:
    """What a request cost, the same record for every mode; what does not apply is None.

    Seconds are wall-clock. `decode_tok_s` runs from the first token to the end and leaves
    out the tokens that came with it; `end_to_end_tok_s` counts all tokens from submit to end.
    """

    scheduler_mode: str
    scheduler_policy: str
    generation_mode: str
    prompt_tokens: int
    completion_tokens: int
    seed: int
    mtp_disabled_reason: str | None = None
    """Why a request that asked for mode mtp ran in mode ar."""
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache had; None where it was not asked."""
    lane: int | None = None
    """The narrowest installed width that the rows of its widest forward fit in."""
    cohort_id: str | None = None
    mtp_batch_fixed_width: int | None = None
    mtp_batch_real_width: int | None = None
    """The most rows that shared a forward with it, itself included."""
    mtp_batch_route_id: str | None = None
    """"solo" where it shared none, else "batch"."""
    queue_wait_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    decode_elapsed_s: float | None = None
    decode_tok_s: float | None = None
    end_to_end_tok_s: float | None = None
    verify_calls: int | None = None
    drafted_by_depth: tuple[int, ...] | None = None
    accepted_by_depth: tuple[int, ...] | None = None
    tokens_per_cycle: float | None = None
    draft_error: str | None = None
    """The last failure of a drafter: its cycle ran without drafts; after a head's, the rest."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that apply, as plain data."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}

    @classmethod
    def of(cls, window: DecodeWindow, seed: int) -> GenerationStats:
        """Derive the stats from a request's decode window."""
        end = window.ended if window.ended is not None else time.perf_counter()
        first, n = window.first_token, window.completion_tokens
        mtp = window.generation_mode == GenerationMode.MTP and window.verify_calls > 0
        in_cohort = window.scheduler_mode in COHORT_MODES and window.width > 0
        return cls(
            scheduler_mode=window.scheduler_mode,
            scheduler_policy=window.scheduler_policy,
            generation_mode=window.generation_mode,
            prompt_tokens=window.prompt_tokens,
            completion_tokens=n,
            seed=seed,
            mtp_disabled_reason=window.mtp_disabled_reason,
            cached_tokens=window.cached_tokens,
            lane=window.lane,
            cohort_id=window.cohort_id,
            mtp_batch_fixed_width=window.lane if in_cohort else None,
            mtp_batch_real_width=window.width if in_cohort else None,
            mtp_batch_route_id=(SOLO if window.width == 1 else BATCH) if in_cohort else None,
            queue_wait_s=_between(window.submitted, window.admitted),
            prefill_s=_between(window.prefill_started, first),
            ttft_s=_between(window.submitted, first),
            decode_elapsed_s=_between(first, end),
            decode_tok_s=window.decode_tok_s,
            end_to_end_tok_s=n / (end - window.submitted) if n else None,
            verify_calls=window.verify_calls or None,
            drafted_by_depth=tuple(window.drafted_by_depth) if mtp else None,
            accepted_by_depth=tuple(window.accepted_by_depth) if mtp else None,
            tokens_per_cycle=window.tokens_per_cycle,
            draft_error=window.draft_error,
        )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
