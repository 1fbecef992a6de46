"""Where everything of the timeline stands: one layout for the live view, the picture and the table.

Across are seconds, down are lines, one a request. A view scales both to what room it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mtplx_kernel.engine.timeline import CohortView, RequestView, Segment, TimelineView
from mtplx_kernel.widgets.rates import counted

TOP, FLOOR = 0.12, 0.9
"""Between them is what is drawn of a line, which is one unit high."""
BAR = 0.3
"""How high a prefill is, and a decode window in which no draft is right."""
THIN = 0.12
FULL_DRAFTS = 3.0
"""So many right drafts a cycle, or more, fill a line."""
TICK_PX = 90.0
"""Least room between two times on the axis, in pixels."""
COLUMNS = (
    "request",
    "cohort",
    "slot",
    "queued s",
    "prefill s",
    "decode s",
    "tokens",
    "a cycle",
    "tokens/s",
    "end",
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle in a line: `role` names its colour; y goes down from the line's top."""

    role: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """One request.

    Attributes
    ----------
    label
        What stands beside it.
    marks
        In the order in which they are painted.
    tells
        Its numbers in words, one fact a string.
    cells
        The same as a row of a table with `COLUMNS`.
    """

    request_id: str
    label: str
    marks: tuple[Mark, ...]
    tells: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """The ground behind the lines of a cohort: `count` of them from line `first` on."""

    cohort_id: str
    label: str
    first: int
    count: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Rate:
    """The total tokens a second from `x` on, for `width` seconds."""

    x: float
    width: float
    tok_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Layout:
    """All that is to be drawn, and said.

    Attributes
    ----------
    start, end
        The times at the left and at the right, in seconds.
    order
        The request of each line, from the top.
    lines
        Those of them that the view tells of.
    rates
        The curve of the total.
    summary
        All of it in a sentence or two.
    """

    start: float
    end: float
    order: tuple[str, ...]
    lines: tuple[Line, ...]
    bands: tuple[Band, ...]
    rates: tuple[Rate, ...]
    ticks: tuple[Tick, ...]
    summary: str


def layout(view: TimelineView, width: float, origin: float | None = None) -> Layout:
    """Place what a view tells of.

    Parameters
    ----------
    width
        Room for the times, in pixels: it decides how many stand on the axis.
    origin
        The time that counts as 0; None takes the first of the view.
    """
    zero = view.start if origin is None else origin
    start, end = view.start - zero, view.end - zero
    place = {request_id: i for i, request_id in enumerate(view.order)}
    return Layout(
        start=start,
        end=end,
        order=view.order,
        lines=tuple(_line(request, zero) for request in view.requests),
        bands=tuple(_band(cohort, place, zero, end) for cohort in view.cohorts),
        rates=tuple(Rate(part.start - zero, part.seconds, part.tok_s) for part in view.flow),
        ticks=tuple(_ticks(start, end, width)),
        summary=summary(view),
    )


def summary(view: TimelineView) -> str:
    """What a view shows, in words."""
    if not view.order:
        return "No requests yet."
    requests = counted(view.opened, "request")
    if len(view.order) < view.opened:
        requests = f"{len(view.order)} of {requests}"
    parts = [f"{requests}, {counted(view.tokens, 'token')}"]
    if view.waiting or view.running:
        parts.append(f"{view.waiting} waiting and {view.running} running")
    if view.tok_s:
        parts.append(f"{view.tok_s:.1f} tokens/s {'in all' if view.running else 'at the end'}")
    text = "; ".join(parts) + "."
    if view.cohorts:
        text += f" Cohorts: {'; '.join(cohort_words(cohort) for cohort in view.cohorts[-3:])}."
    return text


def cohort_words(cohort: CohortView) -> str:
    """A cohort in a few words."""
    rows = f"up to {counted(cohort.width, 'row')} in {counted(cohort.lane, 'slot')}"
    words = f"{cohort.cohort_id}: {rows if cohort.width else 'nothing decoded yet'}"
    return words + (f", {counted(cohort.refills, 'refill')}" if cohort.refills else "")


def _line(request: RequestView, zero: float) -> Line:
    label = request.request_id
    if request.slot is not None:
        label += f" · slot {request.slot}{' (refill)' if request.refill else ''}"
    return Line(
        request.request_id,
        label,
        tuple(_marks(request, zero)),
        tuple(_tells(request, zero)),
        tuple(_cells(request)),
    )


def _marks(request: RequestView, zero: float) -> Iterable[Mark]:
    for part in request.segments:
        height = THIN if part.kind == "queued" else BAR
        middle = FLOOR - BAR / 2
        y = middle - height / 2
        yield Mark(part.kind, part.start - zero, y, part.end - part.start, height)
    room = FLOOR - BAR - TOP
    for step in request.steps:
        share = min(1.0, step.accepted / step.cycles / FULL_DRAFTS)
        if share and step.end > step.start:
            top = FLOOR - BAR - share * room
            yield Mark("accepted", step.start - zero, top, step.end - step.start, share * room)
    if request.finish_reason in ("error", "cancelled", "interrupted") and request.ended is not None:
        # As wide as it is drawn at least: an end has no length of its own.
        yield Mark("error", request.ended - zero, TOP, 0.0, FLOOR - TOP)


def _tells(request: RequestView, zero: float) -> Iterable[str]:
    yield f"submitted at {request.submitted - zero:.2f} s"
    for part in request.segments:
        yield f"{part.kind} {_seconds(part)}"
    cached = f", {request.cached_tokens} of them cached" if request.cached_tokens else ""
    yield f"{counted(request.prompt_tokens, 'prompt token')}{cached}"
    tokens = counted(request.completion_tokens, "token")
    if request.decode_tok_s is not None:
        tokens += f", {request.decode_tok_s:.1f} a second"
    yield tokens
    if request.cycles:
        drafts = f"{request.accepted} of {counted(request.drafted, 'draft')} right"
        yield f"{counted(request.cycles, 'cycle')}" + (f", {drafts}" if request.drafted else "")
    yield f"mode {request.generation_mode}, scheduler {request.scheduler_mode}"
    if request.cohort_id is not None:
        yield f"cohort {request.cohort_id}, up to {counted(request.width, 'row')} a forward"
    yield "still open" if request.finish_reason is None else f"ended: {request.finish_reason}"


def _cells(request: RequestView) -> Iterable[str]:
    seconds: Mapping[str, float] = request.seconds
    yield request.request_id
    yield request.cohort_id or ""
    yield "" if request.slot is None else f"{request.slot}{' refill' if request.refill else ''}"
    for kind in ("queued", "prefill", "decode"):
        yield f"{seconds[kind]:.2f}" if kind in seconds else ""
    yield str(request.completion_tokens)
    yield "" if request.tokens_per_cycle is None else f"{request.tokens_per_cycle:.2f}"
    yield "" if request.decode_tok_s is None else f"{request.decode_tok_s:.1f}"
    yield request.finish_reason or "open"


def _band(cohort: CohortView, place: Mapping[str, int], zero: float, end: float) -> Band:
    closed = end if cohort.ended is None else cohort.ended - zero
    first = place[cohort.members[0]]
    label = f"{cohort_words(cohort)}, sealed at {cohort.sealed - zero:.2f} s"
    return Band(cohort.cohort_id, label, first, len(cohort.members), cohort.sealed - zero, closed)


def _ticks(start: float, end: float, width: float) -> Iterable[Tick]:
    """Round times, counted from `start`, as close as they may stand."""
    span = end - start
    if span <= 0:
        return
    step = nice(span / max(1.0, width / TICK_PX))
    digits = max(0, -math.floor(math.log10(step)))
    for i in range(math.floor(span / step) + 1):
        yield Tick(start + i * step, f"{i * step:.{digits}f} s")


def nice(least: float) -> float:
    """The first of 1, 2 and 5 times a power of ten that is no less than `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def as_data(placed: Layout) -> dict[str, object]:
    """What the live view draws: numbers to the millisecond, or the hundredth of a line."""
    return {
        "start": round(placed.start, 3),
        "end": round(placed.end, 3),
        "order": placed.order,
        "bands": [
            [b.label, b.first, b.count, round(b.start, 3), round(b.end, 3)] for b in placed.bands
        ],
        "rates": [[round(r.x, 3), r.width, round(r.tok_s, 1)] for r in placed.rates],
        "summary": placed.summary,
    }


def line_data(line: Line) -> dict[str, object]:
    """One line of it."""
    marks: Sequence[Mark] = line.marks
    return {
        "id": line.request_id,
        "label": line.label,
        "tells": line.tells,
        "marks": [
            [m.role, round(m.x, 3), round(m.y, 3), round(m.width, 4), round(m.height, 3)]
            for m in marks
        ],
    }


def _seconds(part: Segment) -> str:
    return f"{part.end - part.start:.2f} s"
