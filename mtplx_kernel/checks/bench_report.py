"""What ``%mtplx bench`` measured: a line a scheduler mode, which to take, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mtplx_kernel.checks.layout import Sheet, html_page, text_page
from mtplx_kernel.checks.picture import Bar, as_html, picture

REFERENCE = "serial"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """How one scheduler mode did; medians over rounds, and over answers where it is of an answer.

    Attributes
    ----------
    tok_s
        Tokens of all clients together, a second.
    ratio
        That, to mode serial in the same round.
    stream_tok_s
        Tokens a second of one answer after its first cycle.
    ttft_s
        Seconds from the submit to the first token.
    tokens_per_cycle
        Mean over all answers.
    answers, equal
        How many answers there are, and how many are those of mode serial.
    """

    mode: str
    tok_s: float
    ratio: float
    stream_tok_s: float
    ttft_s: float
    tokens_per_cycle: float
    answers: int
    equal: int


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The outcome of a comparison.

    Attributes
    ----------
    clients
        How many asked at a time.
    rows
        Mode serial first.
    best
        The mode that gives most tokens a second.
    missing
        Modes that cannot be had here, with the reason.
    in_force
        The mode that is in force, as before.
    """

    model: str
    arithmetic: str
    clients: int
    rows: tuple[BenchRow, ...]
    best: str
    missing: tuple[str, ...]
    in_force: str
    seconds: float

    @property
    def verdict(self) -> str:
        """One line: which mode does most, and by how much."""
        row = next(row for row in self.rows if row.mode == self.best)
        asked = "1 client" if self.clients == 1 else f"{self.clients} clients"
        if self.best == REFERENCE:
            return f"best with {asked}: serial ({row.tok_s:.1f} tokens a second); no mode leads it"
        return (
            f"best with {asked}: {self.best}, {row.ratio:.2f} x serial "
            f"({row.tok_s:.1f} tokens a second)"
        )

    @property
    def hint(self) -> str:
        """One line: which mode for which work, from these numbers."""
        soonest = min(self.rows, key=lambda row: row.ttft_s).mode
        fastest = max(self.rows, key=lambda row: row.stream_tok_s).mode
        return (
            f"{self.best} to get all answers done, {soonest} for the soonest first token, "
            f"{fastest} for the fastest single answer; %mtplx scheduler NAME takes one"
        )

    def __str__(self) -> str:
        return text_page(self.verdict, self._facts, [self._sheet])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_png_(self) -> bytes | None:
        bars = tuple(
            Bar(row.mode, row.ratio, row.tok_s, row.mode == self.best) for row in self.rows
        )
        return picture(f"{self.model}, {self.clients} at a time", "times serial", bars)

    def _repr_html_(self) -> str:
        page = html_page(self.verdict, self._facts, [self._sheet])
        return page + as_html(self._repr_png_(), self.description)

    @property
    def description(self) -> str:
        """The picture in words, for those who do not see it."""
        ratios = "; ".join(f"{row.mode}: {row.ratio:.2f}" for row in self.rows)
        return f"Bar chart of {self.model}, times scheduler serial. {ratios}. {self.verdict}."

    @property
    def _facts(self) -> list[tuple[str, str]]:
        answers = sum(row.answers for row in self.rows)
        equal = sum(row.equal for row in self.rows)
        facts = [
            ("Model", self.model),
            ("Arithmetic", self.arithmetic),
            ("Take", self.hint),
            ("Answers", f"{equal} of {answers} equal to those of serial"),
            ("In force", f"{self.in_force}, as before"),
            ("Took", f"{self.seconds:.0f} s"),
        ]
        return [*facts, *(("Left out", reason) for reason in self.missing)]

    @property
    def _sheet(self) -> Sheet:
        return Sheet(
            "All clients together, and one answer; medians",
            (
                "scheduler",
                "tokens/s",
                "to serial",
                "one answer/s",
                "first token",
                "tokens/cycle",
                "equal",
                "",
            ),
            tuple(self._cells(row) for row in self.rows),
        )

    def _cells(self, row: BenchRow) -> tuple[str, ...]:
        return (
            row.mode,
            f"{row.tok_s:.1f}",
            f"{row.ratio:.2f}",
            f"{row.stream_tok_s:.1f}",
            f"{row.ttft_s:.2f} s",
            f"{row.tokens_per_cycle:.2f}",
            f"{row.equal} of {row.answers}",
            "best" if row.mode == self.best else "",
        )


def best_of(rows: Sequence[BenchRow], lead: float) -> str:
    """The mode with the largest ratio to serial; serial itself unless one leads it by `lead`."""
    best = max(rows, key=lambda row: row.ratio)
    return best.mode if best.ratio > lead else REFERENCE
