"""What requests came to, as Prometheus reads it, counted from the windows of the timeline.

The names are vLLM's where it has one, so that dashboards made for it can be used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mtplx_kernel.engine.timeline import DecodeWindow, Timeline
from mtplx_kernel.errors import EngineClosed
from mtplx_kernel.server.exposition import Histogram, Sample, family

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

PROMPT = "vllm:prompt_tokens_total"
GENERATED = "vllm:generation_tokens_total"
ENDED = "vllm:request_success_total"
QUERIED = "vllm:prefix_cache_queries_total"
CACHED = "vllm:prefix_cache_hits_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
COUNTERS = {
    PROMPT: "Prompt tokens of requests that have begun to decode.",
    GENERATED: "Tokens that were decoded.",
    ENDED: "Requests that have ended, by how.",
    QUERIED: "Prompt tokens that the prefix cache was asked for.",
    CACHED: "Prompt tokens that the prefix cache had.",
    DRAFTS: "Verifies that had drafts.",
    DRAFTED: "Tokens that were drafted.",
    ACCEPTED: "Drafted tokens that were accepted.",
    ACCEPTED_AT: "Drafted tokens that were accepted, by their place in the draft.",
}
ENDS = {
    "stop": "stop",
    "length": "length",
    "cancelled": "abort",
    "interrupted": "abort",
    "error": "error",
}
"""What vLLM calls the ways in which a request ends."""

FIRST = "vllm:time_to_first_token_seconds"
EACH = "vllm:request_time_per_output_token_seconds"
WHOLE = "vllm:e2e_request_latency_seconds"
QUEUED = "vllm:request_queue_time_seconds"
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
TIMES = {
    FIRST: (LONG, "Seconds from the submission of a request to its first token."),
    EACH: (SHORT, "Seconds a token after the first, of each request."),
    WHOLE: (LONG, "Seconds from the submission of a request to its end."),
    QUEUED: (LONG, "Seconds that a request waited for its turn."),
}

Series = tuple[str, str]
"""A counter's name and the value of its own label, "" where it has none."""
LABELS = {ENDED: "finished_reason", ACCEPTED_AT: "position"}


def counts(window: DecodeWindow) -> dict[Series, int]:
    """What a request has come to so far. None of it becomes less later."""
    drafted, accepted = list(window.drafted_by_depth), list(window.accepted_by_depth)
    begun = window.prompt_tokens if window.first_token is not None else 0
    asked = window.prompt_tokens if window.cached_tokens is not None else 0
    found = {
        (PROMPT, ""): begun,
        (GENERATED, ""): window.completion_tokens,
        (QUERIED, ""): asked,
        (CACHED, ""): window.cached_tokens or 0,
        (DRAFTS, ""): drafted[0] if drafted else 0,
        (DRAFTED, ""): sum(drafted),
        (ACCEPTED, ""): sum(accepted),
    }
    found |= {(ACCEPTED_AT, str(place)): n for place, n in enumerate(accepted)}
    if window.finish_reason is not None:
        found[ENDED, ENDS[window.finish_reason]] = 1
    return found


def times(window: DecodeWindow) -> dict[str, float]:
    """What is known of a request's times so far, in seconds. None of it changes later."""
    found = {}
    if window.admitted is not None:
        found[QUEUED] = window.admitted - window.submitted
    if window.first_token is not None:
        found[FIRST] = window.first_token - window.submitted
    if window.finish_reason is not None and window.ended is not None:
        found[WHOLE] = window.ended - window.submitted
        if window.first_token is not None and window.completion_tokens > 1:
            found[EACH] = (window.ended - window.first_token) / (window.completion_tokens - 1)
    return found


class Totals:
    """What all requests to one model came to."""

    def __init__(self) -> None:
        self.counted: dict[Series, int] = defaultdict(int)
        self.timed = {name: Histogram(bounds) for name, (bounds, _) in TIMES.items()}
        for name in COUNTERS:
            if name not in LABELS:
                self.counted[name, ""] = 0
        for reason in ENDS.values():
            self.counted[ENDED, reason] = 0


@dataclass(slots=True)
class Noted:
    """What of a window is in the totals already; the window is kept, so that its id is its own."""

    window: DecodeWindow
    counted: Mapping[Series, int] = field(default_factory=dict)
    timed: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False


class Follower:
    """Adds to totals what is new in a timeline since it last looked.

    Parameters
    ----------
    totals
        What is added to.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._noted: dict[int, Noted] = {}

    @property
    def done(self) -> bool:
        """Whether nothing more can come of what it has seen."""
        return all(noted.ended for noted in self._noted.values())

    def look(self, timeline: Timeline) -> None:
        """Add what is new.

        Parameters
        ----------
        timeline
            The same at each look. Requests that it forgets in between are not counted.
        """
        before = self._noted
        self._noted = {key: noted for key, noted in before.items() if not noted.ended}
        for window in timeline.windows():
            self._noted[id(window)] = before.get(id(window)) or Noted(window)
        for noted in self._noted.values():
            if not noted.ended:
                self._add(noted)

    def _add(self, noted: Noted) -> None:
        # Read first: all that is written before a finish reason is there once that is.
        ended = noted.window.finish_reason is not None
        counted, timed = counts(noted.window), times(noted.window)
        for series, count in counted.items():
            self._totals.counted[series] += max(0, count - noted.counted.get(series, 0))
        for name in timed.keys() - noted.timed.keys():
            self._totals.timed[name].observe(timed[name])
        noted.counted, noted.timed, noted.ended = counted, timed, ended


class Metrics:
    """The totals by model, over all engines that were served. For one thread.

    Parameters
    ----------
    engines
        Gives the engine that is served now, or raises EngineClosed.
    """

    def __init__(self, engines: Callable[[], Engine]) -> None:
        self._engines = engines
        self._totals: dict[str, Totals] = defaultdict(Totals)
        # An engine that was replaced may come back: what was counted is known as long as it lives.
        self._followers: WeakKeyDictionary[Timeline, Follower] = WeakKeyDictionary()
        self._open: list[Timeline] = []

    async def keep_up(self) -> None:
        """Count what is new; to be called often enough that the timeline forgets nothing."""
        self._look(self._engine())

    def text(self) -> str:
        """All metrics, in Prometheus' text format."""
        engine = self._engine()
        self._look(engine)
        parts = [
            *_gauges(engine),
            *(
                family(name, "counter", told, self._counted(name))
                for name, told in COUNTERS.items()
            ),
            *(
                family(name, "histogram", told, self._timed(name))
                for name, (_, told) in TIMES.items()
            ),
        ]
        return "".join(parts)

    def _engine(self) -> Engine | None:
        try:
            return self._engines()
        except EngineClosed:
            return None

    def _look(self, engine: Engine | None) -> None:
        if engine is not None and engine.timeline not in self._followers:
            self._followers[engine.timeline] = Follower(self._totals[engine.name])
        followed = list(self._followers.items())
        for timeline, follower in followed:
            follower.look(timeline)
        if engine is not None:
            # A timeline whose engine was replaced is kept until its last request has ended.
            self._open = [t for t, f in followed if t is engine.timeline or not f.done]

    def _counted(self, name: str) -> Iterator[Sample]:
        for model, totals in self._totals.items():
            for (of, label), value in totals.counted.items():
                if of == name:
                    own = {LABELS[name]: label} if name in LABELS else {}
                    yield Sample(value, {"model_name": model, **own})

    def _timed(self, name: str) -> Iterator[Sample]:
        for model, totals in self._totals.items():
            yield from totals.timed[name].samples({"model_name": model})


def _gauges(engine: Engine | None) -> Iterator[str]:
    """What is now: of no engine there is nothing to tell but that."""
    ready = engine is not None and not engine.closed
    told = "Whether an engine takes requests."
    yield family("mtplx_engine_ready", "gauge", told, [Sample(int(ready), {})])
    if engine is None:
        return
    status, labels = engine.status(), {"model_name": engine.name}
    now = {
        "vllm:num_requests_running": ("Requests that run.", status["running"]),
        "vllm:num_requests_waiting": ("Requests that wait.", status["queue"]["waiting"]),
        "mtplx_memory_bytes": ("What weights and caches hold.", status["memory_bytes"]),
    }
    for name, (told, value) in now.items():
        yield family(name, "gauge", told, [Sample(value, labels)])
