"""What ``%mtplx verify`` found: a verdict, and the rows behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtplx_kernel.checks.comparing import Comparison, Result
from mtplx_kernel.checks.layout import Sheet, html_page, text_page
from mtplx_kernel.checks.sampling_law import LEAST_P, LawCheck

HYPER = "not yet: the scheduler mode is not there"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a verification.

    Attributes
    ----------
    rows
        One a prompt and way of sampling.
    laws
        One an acceptance rule; empty where nothing was sampled.
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
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        results = [row.result for row in self.rows] + [law.result for law in self.laws]
        return Result.FAILED not in results

    @property
    def verdict(self) -> str:
        """One line: what was found."""
        failures = sum(row.result is Result.FAILED for row in self.rows)
        broken = [law.acceptance for law in self.laws if law.result is Result.FAILED]
        if failures or broken:
            parts = [f"{failures} of {len(self.rows)} comparisons failed"] if failures else []
            parts += [f"the sampling law of {', '.join(broken)} does not hold"] if broken else []
            return f"FAILED: {' and '.join(parts)}"
        ties = sum(row.result is Result.NEAR_TIE for row in self.rows)
        equal = f"{len(self.rows) - ties} of {len(self.rows)} answers equal in modes ar and mtp"
        parts = [equal]
        if ties:
            parts.append(f"{ties} part at a near tie")
        if self.laws:
            parts.append(f"{len(self.laws)} of {len(self.laws)} sampling laws hold")
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
            if row.divergence is not None:
                facts.append(("Divergence", f"{row.prompt}, {row.sampling.name}: {row.divergence}"))
            if row.problem is not None:
                facts.append(("Problem", f"{row.prompt}, {row.sampling.name}: {row.problem}"))
        facts += [
            ("Problem", f"acceptance {law.acceptance}: {law.problem}")
            for law in self.laws
            if law.problem is not None
        ]
        return [*facts, ("Hyper parity", HYPER), ("Took", f"{self.seconds:.0f} s")]

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
        return [answers, laws] if self.laws else [answers]


def _answer_cells(row: Comparison) -> tuple[str, ...]:
    return (
        row.prompt,
        row.sampling.name,
        "own" if row.depth is None else str(row.depth),
        str(row.tokens),
        f"{row.accepted} of {row.drafted}",
        str(row.result),
    )


def _law_cells(law: LawCheck) -> tuple[str, ...]:
    return (
        law.acceptance,
        str(law.draws),
        str(law.drafted),
        "not promised" if law.equal is None else f"{law.equal} of {law.draws}",
        f"{law.fit.statistic:.1f} of {law.fit.freedom}",
        f"{law.fit.p_value:.2g}",
        str(law.result),
    )
