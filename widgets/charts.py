"""The charts of the acceptance view as marks in units, for the live view and the picture alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtplx_kernel.widgets.rates import AcceptanceView, Moment, Share, counted

WIDTH, HEIGHT = 320.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 38.0, 8.0, 30.0, 30.0
"""Room around the marks, for title and axes."""
FLOOR = HEIGHT - BOTTOM
TALL = FLOOR - TOP
BROAD = WIDTH - LEFT - RIGHT
ROW = 22.0
DRAFTERS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle, filled or `hollow`; `hint` says in words what it stands for."""

    x: float
    y: float
    width: float
    height: float
    role: str
    hint: str = ""
    hollow: bool = False
    kind: str = "bar"


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    role: str
    dashed: bool = False
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class Dot:
    """A point with a hint."""

    x: float
    y: float
    radius: float
    role: str
    hint: str = ""
    kind: str = "dot"


@dataclass(frozen=True, slots=True)
class Words:
    """Text; `anchor` is which of its ends is at x: start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    role: str = "text"
    kind: str = "words"


Mark = Bar | Line | Dot | Words


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: WIDTH by HEIGHT units, y downwards.

    Attributes
    ----------
    aria
        What it shows, in words.
    """

    name: str
    title: str
    aria: str
    marks: tuple[Mark, ...]

    def as_data(self) -> dict[str, Any]:
        """As plain data; places to a hundredth of a unit."""
        marks = [_rounded(asdict(mark)) for mark in self.marks]
        return {"name": self.name, "title": self.title, "aria": self.aria, "marks": marks}


def charts(view: AcceptanceView) -> list[Chart]:
    """All charts of a view, in the order in which they are read."""
    return [by_depth(view), by_drafter(view), over_time(view), chosen_depths(view), costs(view)]


def by_depth(view: AcceptanceView) -> Chart:
    """A bar for the drafts at each depth, filled as far as they were right."""
    said = "; ".join(f"depth {s.name}: {_of(s)}" for s in view.by_depth)
    title = "Drafts right, by depth"
    if not view.by_depth:
        return empty("by_depth", title, "no drafts yet")
    most = max(share.drafted for share in view.by_depth)
    step = BROAD / len(view.by_depth)
    marks: list[Mark] = [*floor(), Words(LEFT - 4, TOP + 4, short(most), "end", "muted")]
    for n, share in enumerate(view.by_depth):
        x, width = LEFT + step * (n + 0.15), step * 0.7
        drafted, accepted = (TALL * k / most for k in (share.drafted, share.accepted))
        hint = f"depth {share.name}: {_of(share)}"
        marks += [
            Bar(x, FLOOR - drafted, width, drafted, "muted", hint, hollow=True),
            Bar(x, FLOOR - accepted, width, accepted, "accepted", hint),
            Words(x + width / 2, FLOOR + 13, share.name, "middle", "muted"),
        ]
        if len(view.by_depth) <= 8:
            middle = x + width / 2
            marks.append(Words(middle, FLOOR - drafted - 4, f"{share.share:.0%}", "middle"))
    marks.append(Words(LEFT + BROAD / 2, HEIGHT - 4, "depth of the draft", "middle", "muted"))
    return Chart("by_depth", title, f"{title}. {said}.", (heading(title), *marks))


def by_drafter(view: AcceptanceView) -> Chart:
    """A bar for each drafter, filled as far as its drafts were right."""
    title = "Drafts right, by drafter"
    shares = view.by_drafter[:DRAFTERS_SHOWN]
    if not shares:
        return empty("by_drafter", title, "no drafts yet")
    left = 64.0
    room = WIDTH - left - 118.0
    marks: list[Mark] = [heading(title)]
    for n, share in enumerate(shares):
        y = TOP + 4 + n * ROW
        hint = f"{share.name}: {_of(share)} in {counted(share.cycles, 'cycle')}"
        marks += [
            Words(left - 6, y + 11, share.name, "end"),
            Bar(left, y, room, ROW - 8, "muted", hint, hollow=True),
            Bar(left, y, room * share.share, ROW - 8, "accepted", hint),
            Words(left + room + 6, y + 11, f"{share.share:.0%} of {share.drafted}"),
        ]
    said = "; ".join(f"{share.name}: {_of(share)}" for share in shares)
    return Chart("by_drafter", title, f"{title}. {said}.", tuple(marks))


def over_time(view: AcceptanceView) -> Chart:
    """The share of drafts that were right, and tokens a cycle, over time."""
    title = "Over time, idle time left out"
    moments = view.moments
    if not moments:
        return empty("over_time", title, "nothing decoded yet")
    span = moments[-1].start + moments[-1].seconds
    most = max(1.0, *(moment.tokens_per_cycle for moment in moments))
    share = [(_when(m, span), FLOOR - TALL * m.share) for m in moments if m.share is not None]
    speed = [(_when(m, span), FLOOR - TALL * m.tokens_per_cycle / most) for m in moments]
    marks: list[Mark] = [
        heading(title),
        *floor(),
        Words(LEFT - 4, TOP + 4, "100%" if share else f"{most:.3g}", "end", "muted"),
        Line(tuple(speed), "decode", dashed=True),
        Words(WIDTH - RIGHT, HEIGHT - 4, f"- - tokens a cycle (top: {most:.1f})", "end", "decode"),
        Words(LEFT, FLOOR + 13, "0 s", "start", "muted"),
        Words(WIDTH - RIGHT, FLOOR + 13, f"{span:g} s", "end", "muted"),
    ]
    if share:
        marks += [
            Line(tuple(share), "accepted"),
            *(Dot(x, y, 1.5, "accepted") for x, y in share),
            Words(LEFT, HEIGHT - 4, "\N{EM DASH} drafts right", "start", "accepted"),
        ]
    marks += [
        Dot(_when(m, span), FLOOR - TALL * m.tokens_per_cycle / most, 1.5, "decode", _told(m))
        for m in moments
    ]
    last = moments[-1]
    return Chart("over_time", title, f"{title}, {span:g} s. Last: {_told(last)}.", tuple(marks))


def chosen_depths(view: AcceptanceView) -> Chart:
    """How many drafts the cycles had."""
    title = "Depth chosen"
    if not view.depths:
        return empty("chosen_depths", title, "no cycle in mode mtp yet")
    cycles = sum(n for _, n in view.depths)
    most, deepest = max(n for _, n in view.depths), view.depths[-1][0]
    step = BROAD / (deepest + 1)
    marks: list[Mark] = [heading(title), *floor()]
    for depth, n in view.depths:
        x, width, height = LEFT + step * (depth + 0.15), step * 0.7, TALL * n / most
        hint = f"{counted(depth, 'draft')}: {n} of {counted(cycles, 'cycle')}"
        marks.append(Bar(x, FLOOR - height, width, height, "head", hint))
        if deepest < 8:
            label = f"{n / cycles:.0%}"
            marks.append(Words(x + width / 2, FLOOR - height - 4, label, "middle"))
    marks += [
        Words(LEFT + step * (depth + 0.5), FLOOR + 13, str(depth), "middle", "muted")
        for depth in range(deepest + 1)
    ]
    axis = f"drafts in a cycle; in force: {view.in_force}"
    marks.append(Words(WIDTH - RIGHT, HEIGHT - 4, axis, "end", "muted"))
    said = "; ".join(f"{depth}: {counted(n, 'cycle')}" for depth, n in view.depths)
    aria = (
        f"{title}, in force: {view.in_force}. On average {view.chosen:.1f} drafts a cycle. {said}."
    )
    return Chart("chosen_depths", title, aria, tuple(marks))


def costs(view: AcceptanceView) -> Chart:
    """The measured cost of a forward by its tokens, and where the cycles are on it."""
    title = "Cost of a forward, one row"
    curve, chosen = view.costs, view.chosen_ms
    if not curve or chosen is None:
        return empty("costs", title, "not measured: nothing drafts")
    longest, most = curve[-1].tokens, max(point.ms for point in curve)

    def at(tokens: float, ms: float) -> tuple[float, float]:
        return LEFT + BROAD * min(tokens / longest, 1.0), FLOOR - TALL * ms / most

    x, y = at(1 + view.chosen, chosen)
    said = f"depth {view.chosen:.1f}: {chosen:.3g} ms"
    left = x < WIDTH / 2
    marks: list[Mark] = [
        heading(title),
        *floor(),
        Words(4.0, TOP - 3, f"{most:.3g} ms", "start", "muted"),
        Line(tuple(at(point.tokens, point.ms) for point in curve), "decode"),
    ]
    for point in curve:
        place = at(point.tokens, point.ms)
        marks += [
            Dot(*place, 3.0, "decode", f"{counted(point.tokens, 'token')}: {point.ms:.3g} ms"),
            Words(place[0], FLOOR + 13, str(point.tokens), "middle", "muted"),
        ]
    marks += [
        Line(((x, FLOOR), (x, y)), "correction", dashed=True),
        Dot(x, y, 5.0, "correction", said),
        Words(x + (8 if left else -8), FLOOR - 6, said, "start" if left else "end"),
        Words(LEFT + BROAD / 2, HEIGHT - 4, "tokens in the forward", "middle", "muted"),
    ]
    measured = "; ".join(f"{counted(point.tokens, 'token')}: {point.ms:.3g} ms" for point in curve)
    return Chart("costs", title, f"{title}. {measured}. Chosen, {said}.", tuple(marks))


def _of(share: Share) -> str:
    return f"{share.accepted} of {share.drafted} right ({share.share:.0%})"


def _told(moment: Moment) -> str:
    right = "no drafts" if moment.share is None else f"{moment.share:.0%} of drafts right"
    return f"{moment.start:.1f} s: {right}, {moment.tokens_per_cycle:.2f} tokens a cycle"


def _when(moment: Moment, span: float) -> float:
    return LEFT + BROAD * (moment.start + moment.seconds / 2) / span


def short(count: int) -> str:
    """A count in no more letters than stand beside an axis: 9999, 14.8k, 1.48M."""
    if count < 10_000:
        return str(count)
    return f"{count / 1e3:.3g}k" if count < 999_500 else f"{count / 1e6:.3g}M"


def heading(text: str) -> Words:
    """A chart's title."""
    return Words(4.0, 13.0, text, role="text")


def floor() -> Sequence[Mark]:
    """The lines at the bottom and at the top of the bars, and the 0."""
    return [
        Line(((LEFT, FLOOR), (WIDTH - RIGHT, FLOOR)), "grid"),
        Line(((LEFT, TOP), (WIDTH - RIGHT, TOP)), "grid"),
        Words(LEFT - 4, FLOOR, "0", "end", "muted"),
    ]


def _rounded(data: dict[str, Any]) -> dict[str, Any]:
    found = {key: round(v, 2) if isinstance(v, float) else v for key, v in data.items()}
    points = [[round(x, 2), round(y, 2)] for x, y in data.get("points", ())]
    return {**found, "points": points} if points else found


def empty(name: str, title: str, why: str) -> Chart:
    """A chart of nothing, and why that is."""
    said = Words(WIDTH / 2, HEIGHT / 2, why, "middle", "muted")
    return Chart(name, title, f"{title}: {why}.", (heading(title), said))
