"""What came of a suite, read from the report that its own runner wrote."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

FIRST_LINE = 200
"""Characters of a failure that are told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A suite's outcome.

    Attributes
    ----------
    failures
        A line each: which test, and how it failed.
    skipped
        How many tests were left out or are known to fail, by the reason.
    """

    passed: int
    failures: tuple[str, ...] = ()
    skipped: Counter[str] = field(default_factory=Counter)


def of_report(file: Path) -> Outcome:
    """Read a report in JUnit's form.

    Raises
    ------
    ValueError
        If a test was left out without a reason.
    """
    passed, failures, skipped = 0, [], Counter[str]()
    for case in ElementTree.parse(file).iter("testcase"):
        name = case.get("name", "")
        left_out = case.find("skipped")
        failed = [each for kind in ("failure", "error") for each in case.findall(kind)]
        if left_out is not None:
            reason = (left_out.get("message") or "").strip()
            if not reason:
                raise ValueError(f"{name} was left out without a reason")
            skipped[reason] += 1
        elif failed:
            told = (failed[0].text or failed[0].get("message") or "").strip()
            failures.append(f"{name}: {' '.join(told.split())[:FIRST_LINE]}")
        else:
            passed += 1
    return Outcome(passed, tuple(failures), skipped)
