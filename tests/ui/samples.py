"""What the views show where no kernel tells it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from mtplx_kernel.engine.timeline import CohortRecord, Timeline
from mtplx_kernel.widgets.charts import charts
from mtplx_kernel.widgets.layout import as_data, layout, line_data
from mtplx_kernel.widgets.tally import AcceptanceTally
from mtplx_kernel.widgets.tracing import MEANING
from tests.widgets.timelines import cycles, request

WIDTH = 4
"""Rows of a cohort; each has two refills."""
COSTS = {"verify_ms": {1: 18.2, 2: 22.4, 3: 26.0, 4: 30.5, 6: 41.9, 8: 60.1}}
ANSWER = (
    "Name  <b>three</b> fruits:\n\n\t* apples\u00a0&amp; pears\r\n* \u6f22\u5b57 \U0001f34e\n\n"
)
"""Spaces, ends of lines and markup that a browser would like to change."""


def many(count: int) -> Timeline:
    """A timeline of so many requests, a new one each half second, decoded in cohorts."""
    timeline = Timeline()
    for n in range(count):
        cohort, place = divmod(n, 3 * WIDTH)
        start = n / 2 + 3.0 * (place // WIDTH)
        if place == 0:
            timeline.form(
                CohortRecord(f"cohort-{cohort + 1}", "mtp", WIDTH, start, ended=start + 9)
            )
        window = request(
            f"req-{n + 1}",
            n / 2,
            start,
            start + 0.2,
            start + 2.8,
            finish_reason="cancelled" if n % 9 == 8 else "stop",
            slot=place % WIDTH,
            cohort_id=f"cohort-{cohort + 1}",
            lane=WIDTH,
            width=WIDTH,
            prompt_tokens=20,
        )
        steps = ((start + 0.2 + k / 20, k % 4, k % 3 if k % 4 > 1 else 0) for k in range(1, 50))
        timeline.open(cycles(window, *steps))
    for n in range(count * 2):
        timeline.count(n / 4, n / 4 + 0.25, 20 + 7 * n % 13)
    return timeline


def timeline_values(timeline: Timeline, *, running: bool = False) -> dict[str, Any]:
    """The traits of the timeline's view."""
    view = timeline.snapshot()
    placed = layout(view, 900)
    head = {**as_data(placed), "running": running, "tok_s": round(view.tok_s, 1)}
    return {
        "settled": json.dumps([line_data(line) for line in placed.lines]),
        "live": json.dumps({"head": head, "lines": []}),
    }


def acceptance_values(timeline: Timeline) -> dict[str, Any]:
    """The traits of the acceptance view."""
    tally = AcceptanceTally()
    tally.take(timeline.windows())
    view = tally.view(COSTS)
    drawn = [chart.as_data() for chart in charts(view)]
    return {"state": json.dumps({"summary": view.summary, "charts": drawn})}


def inspector_values(repeats: int = 1) -> dict[str, Any]:
    """The traits of the inspector: an answer letter by letter, three of them a cycle."""
    text = ANSWER * repeats
    kinds = ("accepted", "accepted", "correction")
    pieces = [[letter, kinds[n % 3], (1, 2, 0)[n % 3], n // 3 + 1] for n, letter in enumerate(text)]
    told = [
        [n + 1, 25.0 if n else None, 3, 2, 3, "correction", "head", 4]
        for n in range(-(-len(pieces) // 3))
    ]
    counts = Counter(str(piece[1]) for piece in pieces)
    state = {
        "request": "req-1",
        "running": False,
        "summary": f"req-1: {len(pieces)} tokens",
        "counts": counts,
        "meaning": {kind: MEANING[kind] for kind in counts},
        "pieces": pieces,
        "cycles": told,
    }
    return {"state": json.dumps(state)}
