"""What happened to every request and cohort: the one source of stats, status and pictures."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

TIMELINE_CAPACITY = 4096


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
    lane: int | None = None
    cohort_id: str | None = None
    width: int = 0
    """The most rows that shared a decode forward with it, itself included."""
    mtp_disabled_reason: str | None = None
    draft_error: str | None = None

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
            self._windows.append(window)

    def windows(self) -> list[DecodeWindow]:
        """The remembered windows, oldest first."""
        with self._lock:
            return list(self._windows)

    def to_records(self) -> list[dict[str, Any]]:
        """The windows as plain dictionaries, for JSON or a data frame."""
        names = DecodeWindow.__slots__
        return [{name: getattr(w, name) for name in names} for w in self.windows()]
