"""The picture of a trace: the tokens of each cycle, by how they came."""

from __future__ import annotations

from collections import Counter

from mtplx_kernel.widgets.charts import (
    BROAD,
    FLOOR,
    HEIGHT,
    LEFT,
    TALL,
    TOP,
    Bar,
    Chart,
    Mark,
    Words,
    empty,
    floor,
    heading,
)
from mtplx_kernel.widgets.tracing import Trace

BARS = 120
LETTER = 5.6
"""About how broad a letter is."""
KINDS = ("accepted", "correction", "bonus", "plain")
"""From the floor up."""
TITLE = "Tokens of each cycle, by how they came"


def cycle_chart(trace: Trace) -> Chart:
    """A bar a cycle, its tokens on each other; of many cycles, the mean of neighbours."""
    if not trace.cycles:
        return empty("cycles", TITLE, "no cycle is recorded")
    each = -(-len(trace.cycles) // BARS)
    groups = [trace.cycles[i : i + each] for i in range(0, len(trace.cycles), each)]
    stacks = []
    for group in groups:
        counts = Counter[str]()
        for cycle in group:
            counts["accepted"] += cycle.accepted
            counts[cycle.last] += cycle.tokens - cycle.accepted
        stacks.append({kind: counts[kind] / len(group) for kind in KINDS})
    most = max(1.0, *(sum(stack.values()) for stack in stacks))
    step = BROAD / len(stacks)
    marks: list[Mark] = [
        heading(TITLE),
        *floor(),
        Words(LEFT - 4, TOP + 4, f"{most:.3g}", "end", "muted"),
    ]
    for n, (stack, group) in enumerate(zip(stacks, groups, strict=True)):
        y = FLOOR
        for kind, tokens in stack.items():
            if tokens:
                height = TALL * tokens / most
                y -= height
                hint = f"cycle {group[0].number}: {tokens:.3g} {kind}"
                marks.append(Bar(LEFT + step * n, y, step * 0.85, height, kind, hint))
    x = 4.0
    for kind in (kind for kind in KINDS if kind in trace.counts):
        words = f"{kind} {trace.counts[kind]}"
        marks.append(Words(x, HEIGHT - 8, words, "start", kind))
        x += LETTER * len(words) + 8
    return Chart("cycles", TITLE, f"{TITLE}. {trace.summary}.", tuple(marks))
