"""The summary of `make conformance`: what is read of reports, and what of it is shown."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.catalogue import HERE, REAL, SUITES, TINY
from tests.conformance.outcome import Outcome, of_report
from tests.conformance.page import Row, page, write

REPORT = """<testsuites><testsuite>
<testcase name="fine"/>
<testcase name="later"><skipped type="pytest.xfail" message="the model is small"/></testcase>
<testcase name="wrong"><failure message="no">first line
second line</failure></testcase>
<testcase name="broken"><error message="a fixture"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    file.write_text(REPORT)
    assert of_report(file) == Outcome(
        passed=1,
        failures=("wrong: first line second line", "broken: a fixture"),
        skipped=Counter({"the model is small": 1}),
    )


def test_nothing_is_left_out_without_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    file.write_text(
        '<testsuite><testcase name="later"><skipped message=""/></testcase></testsuite>'
    )
    with pytest.raises(ValueError, match="later was left out without a reason"):
        of_report(file)


def test_the_page_tells_every_reason(tmp_path: Path) -> None:
    outcome = Outcome(3, ("wrong: no",), Counter({"the model is small": 2}))
    row = Row("clients", "openai 1", REAL, outcome, ("check: too strict",), ("64 clients",))
    file = tmp_path / "page.md"
    write([row], file)
    text = file.read_text()
    assert text == page([row])
    assert "| clients | openai 1 | smollm2-135m | 3 | 1 | 2 |" in text
    for line in ("wrong: no", "the model is small (2)", "check: too strict", "64 clients"):
        assert f"- clients: {line}\n" in text


def test_what_the_suites_run_with_is_pinned() -> None:
    pins = (HERE / "requirements.txt").read_text().splitlines()[1:]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z-]+==[0-9.]+", pin)] == []
    npm = json.loads((HERE / "package.json").read_text())["dependencies"]
    assert [version for version in npm.values() if not re.fullmatch(r"[0-9.]+", version)] == []
    for suite in SUITES:
        assert re.fullmatch(r"(\S+( \(npm\))? [0-9.]+(, )?)+", suite.version), suite.name
        assert suite.model in (REAL, TINY)
