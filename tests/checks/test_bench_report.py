"""The page and the picture of a comparison of schedulers."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from mtplx_kernel.checks import bench_report
from mtplx_kernel.checks.bench_report import BenchReport, BenchRow, best_of

SERIAL = BenchRow("serial", 20.0, 1.0, 24.0, 2.5, 1.8, 24, 24)
ROWS = (
    SERIAL,
    BenchRow("ar_batch", 30.0, 1.5, 8.0, 0.75, 1.0, 24, 24),
    BenchRow("mtp_batch", 42.0, 2.1, 12.0, 1.0, 1.75, 24, 23),
)
REPORT = BenchReport("a <model>", "float32", 4, ROWS, "mtp_batch", (), "serial", 60.4)


def test_the_fastest_wins_if_it_leads_serial() -> None:
    assert best_of(ROWS, 1.02) == "mtp_batch"
    near = replace(ROWS[1], ratio=1.02)
    assert best_of([SERIAL, near], 1.02) == "serial"
    assert best_of([SERIAL, replace(near, ratio=1.03)], 1.02) == "ar_batch"


def test_the_page_says_all_of_it() -> None:
    assert str(REPORT) == (
        "best with 4 clients: mtp_batch, 2.10 x serial (42.0 tokens a second)\n"
        "Model:        a <model>\n"
        "Arithmetic:   float32\n"
        "Take:         mtp_batch to get all answers done, ar_batch for the soonest\n"
        "              first token, serial for the fastest single answer; %mtplx\n"
        "              scheduler NAME takes one\n"
        "Answers:      71 of 72 equal to those of serial\n"
        "In force:     serial, as before\n"
        "Took:         60 s\n"
        "\n"
        "All clients together, and one answer; medians:\n"
        "SCHEDULER  TOKENS/S  TO SERIAL  ONE ANSWER/S  FIRST TOKEN  TOKENS/CYCLE  EQUAL\n"
        "serial     20.0      1.00       24.0          2.50 s       1.80          24 of 24\n"
        "ar_batch   30.0      1.50       8.0           0.75 s       1.00          24 of 24\n"
        "mtp_batch  42.0      2.10       12.0          1.00 s       1.75          23 of 24  best"
    )
    alone = replace(REPORT, clients=1, best="serial", missing=("hyper cannot be had: why",))
    assert alone.verdict == "best with 1 client: serial (20.0 tokens a second); no mode leads it"
    assert "\nLeft out:     hyper cannot be had: why\n" in str(alone)


def test_the_picture_has_its_description() -> None:
    drawn = REPORT._repr_png_()
    assert drawn is not None
    assert struct.unpack(">II", drawn[16:24]) == (840, 261)
    page = REPORT._repr_html_()
    assert (
        '<img alt="Bar chart of a &lt;model&gt;, times scheduler serial. serial: 1.00; '
        "ar_batch: 1.50; mtp_batch: 2.10. best with 4 clients: mtp_batch, 2.10 x serial"
    ) in page
    assert "<model>" not in page


def test_without_matplotlib_there_is_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_report, "picture", lambda *drawn: None)
    assert "<img" not in REPORT._repr_html_()
    assert "<caption" in REPORT._repr_html_()
