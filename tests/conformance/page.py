"""The summary: one table for the screen, and the same as a page of the docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.catalogue import ROOT
from tests.conformance.outcome import Outcome

PAGE = ROOT / "docs/conformance.md"
HEAD = ("suite", "with", "model", "passed", "failed", "skipped")
ABOUT = """# Conformance

What others' clients and test suites make of [the endpoint](endpoint.md), as `make conformance`
found it last. It serves a model with `mtplx-kernel serve` and asks over a socket: `smollm2-135m`
where a sensible answer matters, a tiny model with random weights where thousands of requests do.
The suites live in an environment of their own, which the first run makes; their versions are
pinned. Every part that is skipped, or known to fail, has its reason below.

```bash
make conformance
make conformance CONFORMANCE_ARGS="--only llm-comply"
```
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A suite in the summary.

    Attributes
    ----------
    left_out
        Parts of the suite that are not run, with the reason.
    notes
        Figures, a line each.
    """

    name: str
    version: str
    model: str
    outcome: Outcome
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        done = self.outcome
        counts = (done.passed, len(done.failures), done.skipped.total())
        return (self.name, self.version, self.model, *(f"{count:,}" for count in counts))


def page(rows: Sequence[Row]) -> str:
    """The page of the docs."""
    table = [HEAD, ("---",) * 3 + ("---:",) * 3, *(row.cells for row in rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join([ABOUT, *lines, *_details(rows), ""])


def write(rows: Sequence[Row], file: Path = PAGE) -> None:
    """Keep the summary among the docs."""
    file.write_text(page(rows))


def _details(rows: Sequence[Row]) -> Iterator[str]:
    for title, told in (
        ("Failed", lambda row: row.outcome.failures),
        ("Skipped or known to fail, and why", _reasons),
        ("Left out, and why", lambda row: row.left_out),
        ("Load and fuzz", lambda row: row.notes),
    ):
        lines = [f"- {row.name}: {line}" for row in rows for line in told(row)]
        if lines:
            yield f"\n## {title}\n"
            yield from lines


def _reasons(row: Row) -> Iterator[str]:
    for reason, count in row.outcome.skipped.most_common():
        yield f"{reason} ({count})"
