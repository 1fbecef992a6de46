"""What ``%mtplx verify`` found: a verdict, and the rows behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mtplx_kernel.checks.comparing import Comparison, Result
from mtplx_kernel.checks.hyper_parity import FORKS, HyperParity, HyperRow
from mtplx_kernel.checks.layout import Sheet, html_page, text_page
from mtplx_kernel.checks.sampling_law import LEAST_P, LawCheck


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a verification.

    Attributes
    ----------
    rows
        One a prompt and way of sampling.
    laws
        One an acceptance rule; empty where nothing was sampled.
    hyper
        Answers under scheduler hyper against those under serial.
    arithmetic
        What the numbers were computed with.
    tolerance
        The margin, in log-probability, below which rounding explains a divergence.
    """

    model: str
    arithmetic: str
    drafters: tuple[str, ...]
    tolerance: float
    rows: tuple[Comparison, ...]
    laws: tuple[LawCheck, ...]
    hyper: HyperParity
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        compared = [*self.rows, *self._under_hyper]
        results = [row.result for row in compared] + [law.result for law in self.laws]
        return Result.FAILED not in results

    @property
    def verdict(self) -> str:
        """One line: what was found."""
        if not self.passed:
            return f"FAILED: {' and '.join(self._failures)}"
        parts = [*_answers(self.rows, "equal in modes ar and mtp")]
        if self._under_hyper:
            parts += _answers(self._under_hyper, "under hyper as under serial")
        else:
            parts.append("hyper parity not checked")
        held = sum(law.result is Result.HOLDS for law in self.laws)
        if held:
            parts.append(f"{held} of {len(self.laws)} sampling laws hold")
        if held < len(self.laws):
            parts.append(f"{len(self.laws) - held} sampling laws not tested, for too few draws")
        if not self._drafted:
            parts.append("but nothing was drafted")
        return f"verified: {', '.join(parts)}"

    def __str__(self) -> str:
        return text_page(self.verdict, self._facts, self._sheets)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return html_page(self.verdict, self._facts, self._sheets)

    @property
    def _under_hyper(self) -> list[Comparison]:
        return [row.comparison for row in self.hyper.rows]

    @property
    def _failures(self) -> list[str]:
        parts = []
        if failed := _count(self.rows, Result.FAILED):
            parts.append(f"{failed} of {len(self.rows)} comparisons failed")
        if failed := _count(self._under_hyper, Result.FAILED):
            count = len(self.hyper.rows)
            parts.append(f"{failed} of {count} answers under hyper are not those under serial")
        if broken := [law.acceptance for law in self.laws if law.result is Result.FAILED]:
            parts.append(f"the sampling law of {', '.join(broken)} does not hold")
        return parts

    @property
    def _drafted(self) -> int:
        return sum(row.drafted for row in self.rows)

    @property
    def _facts(self) -> list[tuple[str, str]]:
        accepted, drafting = sum(row.accepted for row in self.rows), ", ".join(self.drafters)
        drafted_in = sum(row.drafted > 0 for row in self.rows)
        rounding = (
            f"a gap of up to {self.tolerance:g} in log-probability is a near tie"
            if self.tolerance
            else "rows do not depend on their neighbours, so answers must be equal"
        )
        facts = [
            ("Model", self.model),
            ("Arithmetic", f"{self.arithmetic}: {rounding}"),
            (
                "Drafts",
                f"{accepted} of {self._drafted} accepted, in {drafted_in} of {len(self.rows)} "
                f"answers ({drafting or 'no drafter'})",
            ),
        ]
        for row in self.rows:
            facts += _remarks(row, f"{row.prompt}, {row.sampling.name}")
        for under in self.hyper.rows:
            row = under.comparison
            rows = f"hyper{' with forks' if under.forked else ''}"
            facts += _remarks(row, f"{row.prompt}, {row.sampling.name}, {rows}")
        facts += [
            ("Problem", f"acceptance {law.acceptance}: {law.problem}")
            for law in self.laws
            if law.problem is not None
        ]
        return [*facts, ("Hyper parity", self._parity), ("Took", f"{self.seconds:.0f} s")]

    @property
    def _parity(self) -> str:
        rows, left_out = self.hyper.rows, self.hyper.left_out
        if not rows:
            return f"not checked: {left_out}"
        forked = [row for row in rows if row.forked]
        parts = [f"{len(rows) - len(forked)} answers alone"]
        if forked:
            attempts = sum(row.fork_attempts for row in forked)
            wins = sum(row.fork_wins for row in forked)
            came = f"{attempts} forks, of which {wins} gained tokens" if attempts else "none forked"
            parts.append(f"{len(forked)} with forks of {FORKS} rows ({came})")
        return f"{', '.join(parts)}{f'; {left_out}' if left_out else ''}"

    @property
    def _sheets(self) -> list[Sheet]:
        answers = Sheet(
            "Answers in modes ar and mtp",
            ("prompt", "sampling", "depth", "tokens", "accepted", "result"),
            tuple(_answer_cells(row) for row in self.rows),
        )
        laws = Sheet(
            f"Sampled next tokens against the model's softmax (p below {LEAST_P:g} fails)",
            ("acceptance", "draws", "with drafts", "as in ar", "chi-square", "p", "result"),
            tuple(_law_cells(law) for law in self.laws),
        )
        hyper = Sheet(
            "Answers under hyper against those under serial",
            ("prompt", "sampling", "most rows", "tokens", "forks that gained", "result"),
            tuple(_hyper_cells(row) for row in self.hyper.rows),
        )
        return [sheet for sheet in (answers, hyper, laws) if sheet.rows]


def _count(rows: Sequence[Comparison], result: Result) -> int:
    return sum(row.result is result for row in rows)


def _answers(rows: Sequence[Comparison], what: str) -> list[str]:
    """How many answers are equal, where no comparison failed."""
    ties = _count(rows, Result.NEAR_TIE)
    parts = [f"{len(rows) - ties} of {len(rows)} answers {what}"]
    return [*parts, f"{ties} part at a near tie"] if ties else parts


def _remarks(row: Comparison, name: str) -> list[tuple[str, str]]:
    """What there is to say of a comparison besides its result."""
    remarks = [("Divergence", f"{name}: {row.divergence}")] if row.divergence is not None else []
    return [*remarks, ("Problem", f"{name}: {row.problem}")] if row.problem else remarks


def _answer_cells(row: Comparison) -> tuple[str, ...]:
    return (
        row.prompt,
        row.sampling.name,
        "own" if row.depth is None else str(row.depth),
        str(row.tokens),
        f"{row.accepted} of {row.drafted}",
        str(row.result),
    )


def _hyper_cells(row: HyperRow) -> tuple[str, ...]:
    compared = row.comparison
    forks = f"{row.fork_wins} of {row.fork_attempts}" if row.forked else "-"
    return (
        compared.prompt,
        compared.sampling.name,
        str(FORKS if row.forked else 1),
        str(compared.tokens),
        "declined" if row.declined is not None else forks,
        str(compared.result),
    )


def _law_cells(law: LawCheck) -> tuple[str, ...]:
    return (
        law.acceptance,
        str(law.draws),
        str(law.drafted),
        "not promised" if law.equal is None else f"{law.equal} of {law.draws}",
        f"{law.fit.statistic:.1f} of {law.fit.freedom}",
        f"{law.fit.p_value:.2g}" if law.fit.freedom else "-",
        str(law.result),
    )
