"""A trace as text, page and picture: the same marks in all, readable without colours."""

from __future__ import annotations

import base64
import re
from html import unescape

import pytest

from mtplx_kernel.engine.timeline import Cycle, DecodeWindow
from mtplx_kernel.widgets.charts import FLOOR, TALL, WIDTH, Bar, Words
from mtplx_kernel.widgets.trace_chart import BARS, cycle_chart
from mtplx_kernel.widgets.trace_pages import SHOWN_CYCLES, as_data, as_html, as_text, bundle
from mtplx_kernel.widgets.tracing import Trace, Tracer
from tests.widgets.test_tracing import BYTES, SOME, window

TRACE = Tracer(window(*SOME, end=True), BYTES).trace()
LONG = Tracer(window(*((n / 8, 1, 1, "head", b"ab") for n in range(500))), BYTES).trace()


def marked(html: str) -> str:
    """The marked text of a page, without styles."""
    (text,) = re.findall(r"<pre[^>]*>(.*?)</pre>", html, re.DOTALL)
    return re.sub(r' style="[^"]*"', "", text)


def test_text_has_a_line_a_cycle_with_marked_tokens() -> None:
    assert as_text(TRACE).splitlines() == [
        "req-1: 7 tokens and an end token in 4 cycles (2.00 a cycle), 5 of 6 drafts right (83%)",
        "[accepted draft], {correction of a wrong draft}, <bonus after right drafts>",
        "cycle      ms  drafted by  right  rows  tokens",
        "    1                       none     2  T",
        "    2   100.0        head    2/3     2  [h][e]{ }",
        "    3   150.0      lookup    2/2     2  [s][k]<y>",
        "    4  7750.0        head    1/1     1",
    ]


def test_line_ends_and_marks_in_a_text_stay_on_their_line() -> None:
    found = window((1.0, 0, 0, None, b"a\n\\\t"))
    assert as_text(Tracer(found, BYTES).trace()).splitlines()[-1].endswith(r"a\n\\\t")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\rb\x00", r"a\rb\x00"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}abc", r"\u202eabc"),
        ("\N{LINE SEPARATOR}\x85", r"\u2028\x85"),
        ("שלום", "שלום"),
        ("👩\N{ZERO WIDTH JOINER}🚀", "👩\N{ZERO WIDTH JOINER}🚀"),
    ],
)
def test_no_token_colours_a_terminal_or_turns_a_line(text: str, shown: str) -> None:
    trace = Tracer(window((1.0, 0, 0, None, text.encode())), BYTES).trace()
    assert as_text(trace).splitlines()[-1].split(" ")[-1] == shown
    assert f"<td>{shown}</td>" in as_html(trace)


@pytest.mark.parametrize("drafted", [0, 4])
def test_a_page_keeps_the_line_ends_at_the_start(drafted: int) -> None:
    """Parsers drop one that follows the tag itself."""
    by = "head" if drafted else None
    page = as_html(Tracer(window((1.0, drafted, drafted, by, b"\n\nab")), BYTES).trace())
    (text,) = re.findall(r"<pre[^>]*>\n?(.*?)</pre>", page, re.DOTALL)
    assert re.sub(r"<[^>]*>", "", text) == "\n\nab"


def test_a_page_marks_tokens_by_elements_and_keeps_the_text_whole() -> None:
    page = as_html(TRACE)
    assert marked(page) == "T<u>h</u><u>e</u><i> </i><u>s</u><u>k</u><b>y</b>"
    # Grounds by depth, each with its own colour of text.
    grounds = re.findall(r'<u style="background:(#\w+);color:#1f2328">[hesk]</u>', page)
    assert len(grounds) == 4
    assert grounds[:2] == grounds[2:]
    assert grounds[0] != grounds[1]
    assert "<td>[s][k]&lt;y&gt;</td>" in page


def test_what_a_model_says_is_not_taken_for_html() -> None:
    said = b'<script>&"'
    page = as_html(Tracer(window((1.0, 9, 9, "head", said)), BYTES).trace())
    assert "<script" not in page
    text = re.sub(r"<[^>]*>", "", marked(page))
    assert unescape(text) == said.decode()


def test_a_long_table_is_cut_in_the_middle_and_says_so() -> None:
    left_out = 500 - SHOWN_CYCLES
    lines = as_text(LONG).splitlines()
    assert lines[-1] == f"({left_out} cycles in the middle are left out)"
    assert len(lines) == 3 + SHOWN_CYCLES + 1
    page = as_html(LONG)
    assert f"<summary>500 cycles, without {left_out} in the middle</summary>" in page
    assert page.count("<tr>") == SHOWN_CYCLES + 1


def test_without_cycles_there_is_one_line() -> None:
    trace = Tracer(DecodeWindow("req-1", 0.0), BYTES).trace()
    assert as_text(trace) == "req-1: 0 tokens, not ended"
    assert "<table" not in as_html(trace)


def test_the_live_view_gets_the_same_as_plain_data() -> None:
    data = as_data(TRACE)
    assert data["pieces"][1] == ["h", "accepted", 1, 2]
    assert data["cycles"][2][2:] == [2, 2, 3, "bonus", "lookup", 2]
    assert data["counts"] == {"accepted": 4, "correction": 1, "bonus": 1, "plain": 1}
    assert data["meaning"].keys() == data["counts"].keys()


def test_the_bundle_has_picture_page_and_text() -> None:
    found = bundle(TRACE)
    assert found.keys() == {"image/png", "text/html", "text/plain"}
    assert base64.b64decode(found["image/png"]).startswith(b"\x89PNG")
    assert f"base64,{found['image/png']}" in found["text/html"]
    assert found["text/plain"] == as_text(TRACE)


def stacks(trace: Trace) -> dict[float, dict[str, float]]:
    """Heights of the picture's bars, in tokens of the highest stack, by their place."""
    found: dict[float, dict[str, float]] = {}
    tops: dict[float, float] = {}
    for mark in cycle_chart(trace).marks:
        assert not isinstance(mark, Words) or mark.x + 5 * len(mark.text) < WIDTH
        if isinstance(mark, Bar):
            # Each stands on the one below it.
            assert mark.y + mark.height == pytest.approx(tops.get(mark.x, FLOOR))
            tops[mark.x] = mark.y
            found.setdefault(mark.x, {})[mark.role] = round(mark.height / TALL, 6)
    return found


def test_the_picture_stacks_the_tokens_of_each_cycle() -> None:
    assert list(stacks(TRACE).values()) == [
        {"plain": round(1 / 3, 6)},
        {"accepted": round(2 / 3, 6), "correction": round(1 / 3, 6)},
        {"accepted": round(2 / 3, 6), "bonus": round(1 / 3, 6)},
        {"accepted": round(1 / 3, 6)},
    ]


def test_many_cycles_share_a_bar() -> None:
    found = stacks(LONG)
    assert len(found) == 100 <= BARS
    assert all(stack == {"accepted": 0.5, "bonus": 0.5} for stack in found.values())


def test_a_trace_of_one_cycle_has_a_picture() -> None:
    found = DecodeWindow("req-1", 0.0)
    found.cycles.record(Cycle(1.0, 0, 0, 1, None, 1), [65])
    assert list(stacks(Tracer(found, BYTES).trace()).values()) == [{"plain": 1.0}]
