"""The timeline at rest: picture, table and text, from the layout that the live view draws."""

from __future__ import annotations

import base64
import struct
from io import BytesIO
from typing import Any

import matplotlib
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from mtplx_kernel.engine.timeline import Timeline
from mtplx_kernel.widgets.layout import FLOOR, TOP, layout
from mtplx_kernel.widgets.palette import SHADES
from mtplx_kernel.widgets.static import LEGEND, LINE_PX, TEXT_ROWS, bundle, figure, png, text
from tests.widgets.timelines import cycles, example, request


def size(picture: bytes) -> tuple[int, int]:
    """Width and height, as a PNG file says them."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    found: tuple[int, int] = struct.unpack(">II", picture[16:24])
    return found


def boxes(drawn: Any) -> dict[str, list[list[float]]]:
    """What is painted over the lines by colour: left, top, width and height of each box."""
    found = {}
    for collection in drawn.axes[1].collections:
        assert isinstance(collection, PolyCollection)
        corners = [path.vertices for path in collection.get_paths()]
        found[to_hex(collection.get_facecolor()[0])] = [
            [*map(float, c.min(axis=0)), *map(float, c.max(axis=0) - c.min(axis=0))]
            for c in corners
        ]
    return found


@pytest.mark.parametrize("dark", [False, True])
def test_the_picture_paints_the_marks_of_the_layout(dark: bool) -> None:
    view = example().snapshot()
    placed, painted = layout(view, 900), boxes(figure(view, 900, dark=dark))
    for role in ("queued", "prefill", "decode", "accepted"):
        wanted = [
            [min(m.x, 8.0 - 8.0 / 900), i + m.y, max(m.width, 8.0 / 900), m.height]
            for i, line in enumerate(placed.lines)
            for m in line.marks
            if m.role == role
        ]
        found = painted[SHADES[role].on(dark=dark)]
        assert found == [pytest.approx(box) for box in wanted], role
        assert found
    # What failed last is at the right edge, and not beyond it.
    failed = painted[SHADES["error"].on(dark=dark)]
    assert failed == [pytest.approx([8.0 - 8.0 / 900, 4 + TOP, 8.0 / 900, FLOOR - TOP])]
    assert painted[SHADES["cohort"].on(dark=dark)] == [pytest.approx([3.0, 1.0, 5.0, 3.0])]


@pytest.mark.parametrize("dark", [False, True])
def test_a_picture_of_few_colours_has_those_of_its_legend(dark: bool) -> None:
    timeline = Timeline()
    for i in range(23):
        ended = request(f"r{i}", 2.0 * i, 2 * i + 0.3, 2 * i + 1.0, 2 * i + 5.0)
        timeline.open(cycles(ended, *((2 * i + 1 + n / 10, 4, i * n % 5) for n in range(38))))
        timeline.count(2.0 * i, 2 * i + 1.3, 12)
    with Image.open(BytesIO(png(timeline.snapshot(), dark=dark))) as picture:
        found = [colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or []]
    for role, _ in LEGEND:
        wanted = bytes.fromhex(SHADES[role].on(dark=dark)[1:])
        nearest = min(max(abs(a - b) for a, b in zip(c, wanted, strict=True)) for c in found)
        assert nearest <= 4, role
    assert len(found) <= 64


def test_the_picture_shows_the_rate_with_gaps() -> None:
    (curve,) = figure(example().snapshot()).axes[0].lines
    points = [(float(x), float(y)) for x, y in zip(*curve.get_data(), strict=True)]
    assert points == [
        (2.0, 0.0),
        (2.0, 0.0),
        (2.0, 32.0),
        (2.25, 32.0),
        (2.25, 16.0),
        (2.5, 16.0),
        (2.5, 0.0),
        (5.0, 0.0),
        (5.0, 8.0),
        (5.25, 8.0),
        (5.25, 0.0),
    ]


def test_a_picture_does_not_follow_the_readers_own_style() -> None:
    plain = png(example().snapshot())
    with matplotlib.rc_context({"axes.grid": True, "savefig.dpi": 300, "savefig.bbox": "tight"}):
        assert png(example().snapshot()) == plain


def test_many_requests_make_a_picture_of_bounded_height() -> None:
    timeline = Timeline()
    for i in range(400):
        timeline.open(request(f"r{i}", i / 100, i / 50, i / 40, i / 20, finish_reason="stop"))
    width, height = size(png(timeline.snapshot(), 600))
    assert width == 600
    assert height < 1500
    assert size(png(example().snapshot(), 600))[1] < 400


def test_a_bundle_says_the_same_three_times() -> None:
    found = bundle(example().snapshot())
    assert found.keys() == {"image/png", "text/html", "text/plain"}
    assert size(base64.b64decode(found["image/png"]))[0] == 900
    assert f'src="data:image/png;base64,{found["image/png"]}"' in found["text/html"]
    summary = layout(example().snapshot(), 900).summary
    assert f'alt="{summary}"' in found["text/html"]
    assert '<th scope="row">d&lt;x&gt;</th>' in found["text/html"]
    assert "d<x>" not in found["text/html"]
    assert "<script" not in found["text/html"]
    lines = found["text/plain"].splitlines()
    assert lines[0] == summary
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "request cohort slot queued s prefill s decode s tokens a cycle tokens/s end",
        "alone 0 0.50 0.50 2.00 6 2.00 3.0 stop",
        "b cohort-1 0 1.00 1.00 1.00 2 2.00 2.0 length",
        "c cohort-1 1 1.00 1.00 4.00 1 1.00 0.2 length",
        "d<x> cohort-1 0 refill 3.00 1.00 1.00 0 length",
        "e 4.00 0.00 0 error",
    ]
    assert len({line.find("length") for line in lines[3:6]}) == 1, "columns are aligned"


def test_a_text_shows_the_last_requests_and_says_how_many_it_does_not() -> None:
    timeline = Timeline()
    for i in range(TEXT_ROWS + 3):
        timeline.open(request(f"r{i}", float(i), ended=float(i), finish_reason="cancelled"))
    lines = text(layout(timeline.snapshot(), 900)).splitlines()
    assert len(lines) == TEXT_ROWS + 3
    assert lines[2] == "(3 before these)"
    assert lines[3].startswith("r3 ")


def test_nothing_yet_is_a_bundle_too() -> None:
    found = bundle(Timeline().snapshot())
    assert found["text/plain"] == "No requests yet."
    assert "<table" not in found["text/html"]
    assert base64.b64decode(found["image/png"]).startswith(b"\x89PNG")


def test_a_timeline_plots_itself() -> None:
    drawn = example().plot(width=500, dark=True)
    assert drawn.get_figwidth() * drawn.dpi == pytest.approx(500)
    assert to_hex(drawn.get_facecolor()) == SHADES["ground"].dark


def test_a_picture_of_the_newest_requests_alone_is_lower() -> None:
    timeline = example()
    whole, part = timeline.plot(), timeline.plot(most=2)
    assert len(part.axes[1].get_yticks()) == 2
    assert whole.get_figheight() - part.get_figheight() == pytest.approx(3 * LINE_PX / whole.dpi)


def test_a_notebook_shows_a_plot_that_is_a_cells_value() -> None:
    data, _ = DisplayFormatter().format(example().plot(width=500))
    assert size(data["image/png"])[0] == 500
    assert data["text/plain"] == bundle(example().snapshot())["text/plain"]


def test_lines_are_drawn_into_axes_of_the_callers() -> None:
    sheet = Figure(figsize=(8, 3))
    left, right = sheet.subplots(1, 2)
    timeline = example()
    timeline.draw(left)
    timeline.draw(right, most=1)
    labels = [label.get_text() for label in timeline.plot().axes[1].get_yticklabels()]
    assert [label.get_text() for label in left.get_yticklabels()] == labels
    assert [label.get_text() for label in right.get_yticklabels()] == labels[-1:] == ["e"]
    assert left.get_ylim() == (5, 0)
    assert right.get_ylim() == (1, 0)
