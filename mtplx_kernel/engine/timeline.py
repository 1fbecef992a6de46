"""What happened to every request and cohort: the one source of stats, status and pictures."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mtplx_kernel.engine.snapshot import SHOWN, CohortView, Flow, RequestView, Segment, TimelineView
from mtplx_kernel.engine.snapshot import view as view_of
from mtplx_kernel.engine.trace import Cycle, Cycles, Origin, Remembered, Step, last_kind, origins
from mtplx_kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CohortRecord",
    "CohortView",
    "Cycle",
    "Cycles",
    "DecodeWindow",
    "Flow",
    "Origin",
    "Remembered",
    "RequestView",
    "Segment",
    "Step",
    "Timeline",
    "TimelineView",
    "last_kind",
    "origins",
]

TIMELINE_CAPACITY = 4096
TRACED = 512
"""So many of the newest requests keep their cycles; an older one loses them once it has ended."""
FLOW_S = 0.25
"""Seconds of the finest part of the total rate."""
FLOW_KEPT = 4096


@dataclass(slots=True)
class DecodeWindow:
    """The life of one request; times are `time.perf_counter()` seconds, None until they happen.

    Written by the owner thread alone.
    """

    request_id: str
    submitted: float
    generation_mode: str = "ar"
    """What it runs in: mode ar also where mode mtp was asked for and could not be had."""
    scheduler_mode: str = "serial"
    scheduler_policy: str = "fifo"
    admitted: float | None = None
    prefill_started: float | None = None
    first_token: float | None = None
    """When the first decoded token reached the owner thread: the start of the decode window."""
    ended: float | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_block: int = 0
    """Tokens of the first cycle: they came together, at `first_token`."""
    end_token: bool = False
    """Whether a token ended it; it was decoded, but is not among the completion tokens."""
    verify_calls: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    slot: int | None = None
    """Which it was given when it was admitted; its row may be moved later."""
    lane: int | None = None
    cohort_id: str | None = None
    width: int = 0
    """The most rows that shared a decode forward with it, itself included."""
    mtp_disabled_reason: str | None = None
    draft_error: str | None = None
    cycles: Cycles = field(default_factory=Cycles)
    """Its last cycles one by one, with their ids."""
    context: tuple[int, ...] = ()
    """The last ids of its prompt, on which the text of its first token may depend."""

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens a second after the first cycle's; None until there are any and the request ended.

        The first cycle's tokens are left out: with drafts they are several, at no time at all.
        """
        later = self.completion_tokens - self.first_block
        if self.first_token is None or self.ended is None or later == 0:
            return None
        return later / (self.ended - self.first_token)

    @property
    def tokens_per_cycle(self) -> float | None:
        """Tokens decoded by each verify, the end token included; None before the first."""
        if self.verify_calls == 0:
            return None
        return (self.completion_tokens + self.end_token) / self.verify_calls

    def record_cycle(self, drafted: int, accepted: int) -> None:
        """Count one verify of `drafted` drafts whose first `accepted` were right."""
        self.verify_calls += 1
        missing = drafted - len(self.drafted_by_depth)
        self.drafted_by_depth.extend([0] * missing)
        self.accepted_by_depth.extend([0] * missing)
        for depth in range(drafted):
            self.drafted_by_depth[depth] += 1
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1


@dataclass(slots=True)
class CohortRecord:
    """Rows that decoded together; times as in `DecodeWindow`. Written by the owner thread alone.

    Attributes
    ----------
    key
        What its rows have in common.
    lane
        The narrowest installed width that its rows fit in, at their most.
    sealed
        When its first row began.
    members
        The last request ids to join, in their order: a cohort that is refilled has no end.
    """

    cohort_id: str
    key: str
    lane: int
    sealed: float
    members: deque[str] = field(default_factory=lambda: deque(maxlen=TIMELINE_CAPACITY))
    ended: float | None = None


class Timeline:
    """Bounded rings of decode windows and cohorts, the newest last.

    Parameters
    ----------
    capacity
        How many requests, and how many cohorts, are remembered.
    """

    def __init__(self, capacity: int = TIMELINE_CAPACITY) -> None:
        self._windows: deque[DecodeWindow] = deque(maxlen=capacity)
        self._cohorts: deque[CohortRecord] = deque(maxlen=capacity)
        self._flow: deque[Flow] = deque(maxlen=FLOW_KEPT)
        self._opened = 0
        self._lock = threading.Lock()

    def form(self, cohort: CohortRecord) -> None:
        """Remember a cohort from now on."""
        with self._lock:
            self._cohorts.append(cohort)

    def cohorts(self) -> list[CohortRecord]:
        """The remembered cohorts, oldest first."""
        with self._lock:
            return list(self._cohorts)

    def open(self, window: DecodeWindow) -> None:
        """Remember a request from now on; its window fills in as it runs."""
        with self._lock:
            self._opened += 1
            self._windows.append(window)
            old = self._windows[-TRACED - 1] if len(self._windows) > TRACED else None
        if old is not None and old.ended is not None:
            old.cycles.forget()

    def windows(self) -> list[DecodeWindow]:
        """The remembered windows, oldest first."""
        with self._lock:
            return list(self._windows)

    def find(self, request_id: str) -> DecodeWindow | None:
        """The window of a request; None where none of that id is remembered."""
        return next((w for w in reversed(self.windows()) if w.request_id == request_id), None)

    @property
    def busy(self) -> bool:
        """Whether a request that is remembered waits or runs."""
        with self._lock:
            return any(window.ended is None for window in reversed(self._windows))

    @property
    def opened(self) -> int:
        """How many requests there have been, forgotten ones too."""
        return self._opened

    def count(self, start: float, end: float, tokens: int) -> None:
        """Add the tokens of one forward, over all its rows, to the total rate (owner thread).

        They are spread over the time that it took: it may be longer than a part of the rate.
        """
        with self._lock:
            for n in range(int(start // FLOW_S), int(end // FLOW_S) + 1):
                edge = n * FLOW_S
                covered = min(end, edge + FLOW_S) - max(start, edge)
                share = tokens * (covered / (end - start) if end > start else 1.0)
                if self._flow and self._flow[-1].start == edge:
                    self._flow[-1] = Flow(edge, FLOW_S, self._flow[-1].tokens + share)
                elif share:
                    self._flow.append(Flow(edge, FLOW_S, share))

    def flow(self) -> list[Flow]:
        """The tokens of all requests by the time in which they came, where any did."""
        with self._lock:
            return list(self._flow)

    def snapshot(self, since: float | None = None, *, most: int = SHOWN) -> TimelineView:
        """What there is to see now, as plain numbers and strings.

        Parameters
        ----------
        since
            Leave out requests that ended before this time, in seconds of `time.perf_counter()`;
            `order` still names them.
        most
            How many requests, the newest, beside older ones that have not ended; cohorts of which
            none is left are left out too.
        """
        windows, cohorts, flow = self.windows(), self.cohorts(), self.flow()
        older = [window for window in windows[:-most] if window.ended is None]
        shown = [*older, *windows[-most:]]
        return view_of(shown, cohorts, flow, time.perf_counter(), since, self.opened)

    def plot(self, *, most: int = SHOWN, width: float = 900, dark: bool = False) -> Figure:
        """Draw it; where it is a cell's value, a notebook shows the picture.

        Parameters
        ----------
        most
            How many requests, as in `snapshot`.
        width
            In pixels.
        dark
            For a dark page.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from mtplx_kernel.widgets.static import figure

        return figure(self.snapshot(most=most), width, dark=dark)

    def draw(self, axes: Axes, *, most: int = SHOWN, dark: bool = False) -> None:
        """Draw the lines of requests into axes of yours, for several pictures side by side.

        Parameters
        ----------
        axes
            Those of a matplotlib figure; their limits and ticks are set.
        most, dark
            As in `plot`.
        """
        from mtplx_kernel.widgets.static import draw

        draw(axes, self.snapshot(most=most), dark=dark)

    def to_frame(self) -> Any:
        """The remembered requests as a pandas data frame, one a row, oldest first.

        Raises
        ------
        InvalidRequest
            If pandas is not installed.
        """
        try:
            pandas = import_module("pandas")  # not one of our requirements
        except ImportError:
            raise InvalidRequest(
                "to_frame() needs pandas, which is not installed: pip install pandas; "
                "to_json() needs nothing"
            ) from None
        return pandas.DataFrame(self.to_records())

    def to_records(self) -> list[dict[str, Any]]:
        """The windows as plain dictionaries, without their cycles and ids."""
        names = [name for name in DecodeWindow.__slots__ if name not in ("context", "cycles")]
        return [{name: getattr(w, name) for name in names} for w in self.windows()]

    def to_json(self) -> str:
        """The last requests, their cohorts and the total rate as JSON: `snapshot()` in words."""
        return json.dumps(asdict(self.snapshot()))
