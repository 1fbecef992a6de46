"""What ``%mtplx tune`` measured: a line a setting, the best of them, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mtplx_kernel.checks.layout import Sheet, html_page, text_page
from mtplx_kernel.checks.picture import Bar, as_html, picture


@dataclass(frozen=True, slots=True)
class Setting:
    """Mode ar, mode mtp with a fixed depth, or with the engine's own choice of it.

    Attributes
    ----------
    mode
        "ar" or "mtp".
    depth
        Drafts a cycle; None lets the engine choose.
    """

    mode: str
    depth: int | None

    @property
    def name(self) -> str:
        """In words."""
        if self.mode == "ar":
            return "ar"
        return "mtp, adaptive" if self.depth is None else f"mtp, depth {self.depth}"


@dataclass(frozen=True, slots=True)
class TuneRow:
    """How one setting did.

    Attributes
    ----------
    tok_s
        Tokens a second after the first cycle, median over all runs.
    ratio
        To mode ar on the same prompt in the same round, median over all runs.
    worst
        The same on the prompt where it is lowest.
    tokens_per_cycle
        Mean over all runs.
    drafted, accepted
        Drafts of all runs.
    """

    setting: Setting
    tok_s: float
    ratio: float
    worst: float
    tokens_per_cycle: float
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The outcome of a tuning.

    Attributes
    ----------
    rows
        Mode ar first, then the settings of mode mtp.
    best
        The setting that is now in force.
    differing
        How many answers differed from those of mode ar.
    kept
        What became of the result: where it is in force, or why it is not.
    """

    model: str
    arithmetic: str
    rows: tuple[TuneRow, ...]
    best: Setting
    answers: int
    differing: int
    kept: str
    seconds: float

    @property
    def verdict(self) -> str:
        """One line: what is best, and by how much."""
        row = next(row for row in self.rows if row.setting == self.best)
        if self.best.mode == "ar":
            return f"best: ar ({row.tok_s:.1f} tokens a second); drafts do not pay here"
        return f"best: {self.best.name}, {row.ratio:.2f} x ar ({row.tok_s:.1f} tokens a second)"

    def __str__(self) -> str:
        return text_page(self.verdict, self._facts, [self._sheet])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_png_(self) -> bytes | None:
        bars = tuple(
            Bar(row.setting.name, row.ratio, row.tok_s, row.setting == self.best)
            for row in self.rows
        )
        return picture(self.model, "times the speed of mode ar", bars)

    def _repr_html_(self) -> str:
        page = html_page(self.verdict, self._facts, [self._sheet])
        return page + as_html(self._repr_png_(), self.description)

    @property
    def description(self) -> str:
        """The picture in words, for those who do not see it."""
        ratios = "; ".join(f"{row.setting.name}: {row.ratio:.2f}" for row in self.rows)
        return f"Bar chart of {self.model}, times the speed of mode ar. {ratios}. {self.verdict}."

    @property
    def _facts(self) -> list[tuple[str, str]]:
        same = self.answers - self.differing
        return [
            ("Model", self.model),
            ("Arithmetic", self.arithmetic),
            ("Answers", f"{same} of {self.answers} equal to those of mode ar"),
            ("In force", self.kept),
            ("Took", f"{self.seconds:.0f} s"),
        ]

    @property
    def _sheet(self) -> Sheet:
        return Sheet(
            "Decoding, medians over prompts and rounds",
            ("setting", "tokens/s", "to ar", "worst prompt", "tokens/cycle", "accepted", ""),
            tuple(self._cells(row) for row in self.rows),
        )

    def _cells(self, row: TuneRow) -> tuple[str, ...]:
        share = f"{row.accepted / row.drafted:.0%} of {row.drafted}" if row.drafted else "none made"
        return (
            row.setting.name,
            f"{row.tok_s:.1f}",
            f"{row.ratio:.2f}",
            f"{row.worst:.2f}",
            f"{row.tokens_per_cycle:.2f}",
            "" if row.setting.mode == "ar" else share,
            "best" if row.setting == self.best else "",
        )


def best_of(rows: Sequence[TuneRow], lead: float) -> Setting:
    """The fastest setting, by ratio to ar; the engine's own choice unless one leads by `lead`."""
    best = max(rows, key=lambda row: row.ratio)
    adaptive = next(row for row in rows if row.setting == Setting("mtp", None))
    return adaptive.setting if best.ratio <= adaptive.ratio * lead else best.setting
