"""A timeline with a history that a person can check, for the views of it."""

from __future__ import annotations

from typing import Any

from mtplx_kernel.engine.timeline import CohortRecord, Cycle, DecodeWindow, Timeline


def request(name: str, *times: float, **given: Any) -> DecodeWindow:
    """A request that was submitted, admitted, had its first token and ended at `times`."""
    window = DecodeWindow(name, times[0], generation_mode="mtp", **given)
    for what, at in zip(("admitted", "first_token", "ended"), times[1:], strict=False):
        setattr(window, what, at)
    window.prefill_started = window.admitted
    return window


def cycles(window: DecodeWindow, *given: tuple[float, int, int]) -> DecodeWindow:
    """Add cycles by their times, drafts and accepted drafts, each with a token more."""
    for at, drafted, accepted in given:
        ids = list(range(accepted + 1))
        window.record_cycle(drafted, accepted)
        cycle = Cycle(at, drafted, accepted, accepted + 1, "head" if drafted else None, rows=1)
        window.cycles.record(cycle, ids)
        window.completion_tokens += len(ids)
    return window


def example() -> Timeline:
    """A request alone; a cohort of two slots with three requests; one that failed; from 10 s on."""
    timeline = Timeline()
    alone = request("alone", 10.0, 10.5, 11.0, 13.0, finish_reason="stop", slot=0, prompt_tokens=5)
    cycles(alone, (11.0, 0, 0), (12.0, 3, 3), (13.0, 2, 0))
    timeline.open(alone)
    both = {"cohort_id": "cohort-1", "lane": 2, "width": 2, "finish_reason": "length"}
    timeline.open(cycles(request("b", 12.0, 13.0, 14.0, 15.0, slot=0, **both), (15.0, 1, 1)))
    timeline.open(cycles(request("c", 12.0, 13.0, 14.0, 18.0, slot=1, **both), (18.0, 0, 0)))
    timeline.open(request("d<x>", 12.0, 15.0, 16.0, 17.0, slot=0, **both))
    timeline.form(CohortRecord("cohort-1", "mtp", 2, 13.0, ended=18.0))
    timeline.open(request("e", 14.0, 18.0, finish_reason="error"))
    timeline.windows()[-1].ended = 18.0
    timeline.count(12.0, 12.25, 8)
    timeline.count(12.25, 12.5, 4)
    timeline.count(15.0, 15.1, 2)
    return timeline
