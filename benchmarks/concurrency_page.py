"""A concurrency benchmark's report as a Markdown page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.page import ENOUGH_ROUNDS, machine_rows


@dataclass(frozen=True, slots=True)
class ConcurrencyReport:
    """What the benchmark found; the JSON object has the same fields.

    Attributes
    ----------
    ratios
        What the benchmark is for.
    ids_equal
        Whether all answers of the engine's modes are the serial ones; mlx-lm's do not count.
    table
        One row for each load, number of clients and side.
    gaps
        One row a side: how long a running stream stood still beside a long prompt.
    differences
        Every answer that is not the serial one, of any side.
    """

    benchmark: str
    model: str
    machine: dict[str, Any]
    ratios: dict[str, float]
    ids_equal: bool
    table: list[dict[str, Any]]
    gaps: list[dict[str, Any]]
    differences: list[dict[str, Any]]


Row = dict[str, Any]
COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("clients", lambda r: str(r["clients"])),
    ("side", lambda r: r["side"]),
    ("tok/s", lambda r: f"{r['tok_s']:.1f}"),
    ("a stream: p50", lambda r: f"{r['stream_tok_s_p50']:.1f}"),
    ("p95", lambda r: f"{r['stream_tok_s_p95']:.1f}"),
    ("TTFT ms: p50", lambda r: _ms(r["ttft_s_p50"])),
    ("p95", lambda r: _ms(r["ttft_s_p95"])),
    ("TPOT ms: p50", lambda r: f"{1000 * r['tpot_s_p50']:.1f}"),
    ("p95", lambda r: f"{1000 * r['tpot_s_p95']:.1f}"),
    ("queue ms: p50", lambda r: _ms(r["queue_wait_s_p50"])),
    ("p95", lambda r: _ms(r["queue_wait_s_p95"])),
    ("Jain", lambda r: f"{r['jain']:.3f}"),
    ("tok/cycle", lambda r: f"{r['tokens_per_cycle']:.2f}"),
    ("ids", lambda r: _ids(r)),
)
GAP_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("side", lambda r: r["side"]),
    ("gaps", lambda r: str(r["gaps"])),
    ("alone ms: p50", lambda r: f"{r['alone_ms_p50']:.1f}"),
    ("beside ms: p50", lambda r: f"{r['gap_ms_p50']:.1f}"),
    ("p95", lambda r: f"{r['gap_ms_p95']:.1f}"),
    ("longest", lambda r: f"{r['gap_ms_max']:.1f}"),
    ("target", lambda r: f"{r['target_ms']:g}"),
)
DIFFERENCE_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("load", lambda r: f"{r['load']}@{r['clients']}"),
    ("side", lambda r: r["side"]),
    ("prompt", lambda r: r["prompt"]),
    ("times", lambda r: str(r["times"])),
    ("from token", lambda r: str(r["at"])),
    ("margin", lambda r: f"{r['margin']:.2g}"),
)


def text(report: ConcurrencyReport) -> str:
    """The report for people."""
    parts = [f"# {report.benchmark}: {report.model}", _about(report)]
    for load in dict.fromkeys(row["load"] for row in report.table):
        rows = [row for row in report.table if row["load"] == load]
        parts += [f"## {load}", _size(rows), table(COLUMNS, rows)]
    if report.gaps:
        parts += [
            f"## A {report.machine['long_prompt_tokens']}-token prompt beside a running stream",
            "Milliseconds between blocks of the stream's tokens: alone, and from the long prompt's "
            "arrival to its first token.",
            table(GAP_COLUMNS, report.gaps),
        ]
    if report.ratios:
        lines = [f"| {name} | {value:.3f} |" for name, value in report.ratios.items()]
        parts += ["## Ratios", "\n".join(["| ratio | value |", "|---|---|", *lines])]
    parts += ["## Equality", _equality(report)]
    return "\n\n".join(parts)


def table(columns: Sequence[tuple[str, Callable[[Row], str]]], rows: Sequence[Row]) -> str:
    """Rows as a Markdown table."""
    lines = [[name for name, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row) for _, cell in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _about(report: ConcurrencyReport) -> str:
    machine = report.machine
    rows = [
        *machine_rows(machine),
        (
            "BLAS threads",
            f"{machine['blas_threads']}, {machine['blas_threads_at_the_end']} at last",
        ),
        ("Drafters", ", ".join(machine["drafters"]) or "none"),
        ("Head", machine["head"] or "none"),
        ("Width", f"{machine['width']} rows at most, in the modes that batch"),
    ]
    if machine["mtp_reason"]:
        rows.append(("No mtp", machine["mtp_reason"]))
    return "\n".join(f"- {label}: {value}" for label, value in rows)


def _size(rows: Sequence[Row]) -> str:
    rounds = rows[0]["rounds"]
    few = "" if rounds >= ENOUGH_ROUNDS else f" Too few rounds to quote: repeat {ENOUGH_ROUNDS}."
    return f"Medians of {rounds} {'round' if rounds == 1 else 'rounds'}.{few}"


def _ids(row: Row) -> str:
    if not row["differing"]:
        return "equal"
    answers = row["rounds"] * row["requests"]
    return f"{row['differing']} of {answers} differ, margin {row['worst_margin']:.2g}"


def _equality(report: ConcurrencyReport) -> str:
    told = "All answers of the engine's modes are the serial ones, token for token."
    if not report.ids_equal:
        told = "Some answers of the engine's modes are not the serial ones."
    if not report.differences:
        return told
    beyond = sum(row["times"] for row in report.differences if row["beyond_rounding"])
    return (
        f"{told} Below is every answer that differs. A margin near zero is a near tie, which "
        f"rounding may turn: up to {report.machine['tolerance']:g} in log-probability here; "
        f"{beyond} of the differing answers are beyond that.\n\n"
        + table(DIFFERENCE_COLUMNS, report.differences)
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"
