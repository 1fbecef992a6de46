"""The timeline at one moment, as plain numbers and strings that any thread may keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from mtplx_kernel.engine.trace import Step

if TYPE_CHECKING:
    from mtplx_kernel.engine.timeline import CohortRecord, DecodeWindow

SHOWN = 512
STEPS = 48
"""Most parts in which a request's decode window is told."""
FLOWS = 240
"""Most parts in which the total rate is told."""
RECENT_S = 2.0
"""Over so many of the last seconds the rate of now is taken."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a request's life, in seconds of `time.perf_counter()`."""

    kind: Literal["queued", "prefill", "decode"]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Tokens of all requests in a stretch of time."""

    start: float
    seconds: float
    tokens: float

    @property
    def tok_s(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request: see `DecodeWindow` for what the fields mean.

    Attributes
    ----------
    segments
        What it has been through, in order; an open one ends now.
    steps
        Its remembered cycles, at most `STEPS` parts.
    cycles, drafted, accepted
        How many there were, forgotten ones included.
    refill
        Whether it joined its cohort after another of it had ended.
    decode_tok_s
        So far, where it is still decoding.
    """

    request_id: str
    scheduler_mode: str
    generation_mode: str
    cohort_id: str | None
    slot: int | None
    lane: int | None
    width: int
    refill: bool
    submitted: float
    ended: float | None
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    cycles: int
    drafted: int
    accepted: int
    tokens_per_cycle: float | None
    decode_tok_s: float | None
    segments: tuple[Segment, ...]
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """How long each segment took."""
        return {part.kind: part.end - part.start for part in self.segments}


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortView:
    """Requests that ran together.

    Attributes
    ----------
    lane, width
        Slots of its widest forward, and the most rows that shared one.
    members
        Ids of those of its requests that are shown, in the order of the lines.
    joined
        How many requests were in it, as far as is remembered.
    refills
        How many of those shown took a place that another had left.
    """

    cohort_id: str
    key: str
    sealed: float
    ended: float | None
    lane: int
    width: int
    members: tuple[str, ...]
    joined: int
    refills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """What there is to see.

    Attributes
    ----------
    start, end
        When the first request shown was submitted, and the time of the view; where none is open,
        when the last of them ended.
    now
        The time of the view.
    order
        Ids of all requests shown, cohort by cohort, each as it came.
    opened
        How many requests there have been, shown or not.
    requests
        Those shown that a reader has to look at, in that order.
    flow
        Tokens of all requests by time, where there were any.
    tok_s
        Tokens a second of all requests in the two seconds before the last token.
    waiting, running
        How many requests are queued, and under way.
    tokens
        How many tokens those shown have.
    """

    start: float
    end: float
    now: float
    order: tuple[str, ...]
    opened: int
    requests: tuple[RequestView, ...]
    cohorts: tuple[CohortView, ...]
    flow: tuple[Flow, ...]
    tok_s: float
    waiting: int
    running: int
    tokens: int


def view(
    windows: Sequence[DecodeWindow],
    cohorts: Iterable[CohortRecord],
    flow: Sequence[Flow],
    now: float,
    since: float | None = None,
    opened: int | None = None,
) -> TimelineView:
    """What some requests and the cohorts in which they were looked like at a time."""
    named = {cohort.cohort_id: cohort for cohort in cohorts}
    # The owner thread goes on meanwhile: who is in which cohort is read once.
    placed = [(w, named.get(w.cohort_id or "")) for w in windows]
    placed.sort(key=lambda pair: _place(*pair))
    ordered = [w for w, _ in placed]
    refills = set[str]()
    seen = []
    for name, group in groupby(placed, key=lambda pair: pair[1] and pair[1].cohort_id):
        cohort = named.get(name or "")
        if cohort is None:
            continue
        members = [w for w, _ in group]
        late = _refills(members)
        refills |= late
        seen.append(
            CohortView(
                cohort_id=cohort.cohort_id,
                key=cohort.key,
                sealed=cohort.sealed,
                ended=cohort.ended,
                lane=cohort.lane,
                width=max(w.width for w in members),
                members=tuple(w.request_id for w in members),
                joined=len(cohort.members),
                refills=len(late),
            )
        )
    start = min((w.submitted for w in windows), default=now)
    shown = [f for f in flow if f.start + f.seconds > start]
    ends = [w.ended for w in windows]
    open_ones = [w for w, end in zip(windows, ends, strict=True) if end is None]
    return TimelineView(
        start=start,
        end=max((now if end is None else end for end in ends), default=now),
        now=now,
        order=tuple(w.request_id for w in ordered),
        opened=len(ordered) if opened is None else opened,
        requests=tuple(
            _request(w, now, w.request_id in refills)
            for w in ordered
            if since is None or w.ended is None or w.ended >= since
        ),
        cohorts=tuple(seen),
        flow=tuple(_merged(shown)),
        tok_s=_recent(shown, now),
        waiting=sum(w.admitted is None for w in open_ones),
        running=sum(w.admitted is not None for w in open_ones),
        tokens=sum(w.completion_tokens for w in windows),
    )


def _place(window: DecodeWindow, cohort: CohortRecord | None) -> tuple[float, str]:
    """What orders the lines: cohorts as they were sealed, and between them who is in none."""
    return (window.submitted, "") if cohort is None else (cohort.sealed, cohort.cohort_id)


def _refills(members: Sequence[DecodeWindow]) -> set[str]:
    """Ids of those that were admitted after another of them had ended."""
    first_end = min((w.ended for w in members if w.ended is not None), default=None)
    if first_end is None:
        return set()
    return {w.request_id for w in members if w.admitted is not None and w.admitted >= first_end}


def _request(window: DecodeWindow, now: float, refill: bool) -> RequestView:
    # The owner thread goes on meanwhile: what is read first is never ahead of what is read later.
    # It writes the reason of an end last, so that with a reason all else is final.
    reason, ended, first = window.finish_reason, window.ended, window.first_token
    until = now if ended is None else ended
    rate = window.decode_tok_s
    if rate is None and first is not None and ended is None and until > first:
        rate = (window.completion_tokens - window.first_block) / (until - first)
    return RequestView(
        request_id=window.request_id,
        scheduler_mode=window.scheduler_mode,
        generation_mode=window.generation_mode,
        cohort_id=window.cohort_id,
        slot=window.slot,
        lane=window.lane,
        width=window.width,
        refill=refill,
        submitted=window.submitted,
        ended=ended,
        finish_reason=reason,
        prompt_tokens=window.prompt_tokens,
        cached_tokens=window.cached_tokens,
        completion_tokens=window.completion_tokens,
        accepted=sum(window.accepted_by_depth),
        drafted=sum(window.drafted_by_depth),
        cycles=window.verify_calls,
        tokens_per_cycle=window.tokens_per_cycle,
        decode_tok_s=rate if rate and rate > 0 else None,
        segments=tuple(_segments(window.submitted, window.prefill_started, first, until)),
        steps=() if first is None else tuple(window.cycles.steps(STEPS, first)),
    )


def _segments(
    submitted: float, prefill: float | None, first: float | None, until: float
) -> Iterable[Segment]:
    yield Segment("queued", submitted, until if prefill is None else prefill)
    if prefill is not None:
        yield Segment("prefill", prefill, max(prefill, until) if first is None else first)
    if first is not None:
        yield Segment("decode", first, max(first, until))


def _merged(flow: Sequence[Flow]) -> list[Flow]:
    """The same in at most `FLOWS` parts, each some power of two of what there is."""
    if not flow:
        return []
    seconds = flow[0].seconds
    while flow[-1].start - flow[0].start > seconds * (FLOWS - 1):
        seconds *= 2
    parts = groupby(flow, key=lambda f: f.start // seconds * seconds)
    return [Flow(start, seconds, sum(f.tokens for f in part)) for start, part in parts]


def _recent(flow: Sequence[Flow], now: float) -> float:
    """The rate before the last token, without a part that is not over yet if there are others."""
    over = [f for f in flow if f.start + f.seconds <= now] or flow
    if not over:
        return 0.0
    end = over[-1].start + over[-1].seconds
    last = [f for f in over if f.start >= end - RECENT_S]
    return sum(f.tokens for f in last) / (end - last[0].start)
