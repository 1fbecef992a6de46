"""An acceptance benchmark's report as text that fits a narrow window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.page import Report, machine_rows
from benchmarks.scores import label
from mtplx_kernel.report import count, labelled, table


def text(report: Report) -> str:
    """The report for people."""
    rows = report.table
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    parts = [
        f"{report.benchmark}: {report.model}, {len({row['prompt'] for row in rows})} held-out "
        f"prompts, at most {report.machine['max_tokens']} tokens each",
        labelled([*machine_rows(report.machine), *_head_rows(report.machine)]),
        "Share of drafts that are right where all before them were, by depth; all cycles\n"
        "of a domain's texts count alike, and all domains in the averages. What texts\n"
        "give after they begin to repeat themselves is not counted.",
        *(_scores(report, temperature) for temperature in temperatures),
        _equality(report),
    ]
    return "\n\n".join(parts)


def _head_rows(machine: dict[str, Any]) -> list[tuple[str, str]]:
    head = machine["head"]
    if head is None:
        return [("Head", "none: every cycle gives one token")]
    size = f"{count(head['parameters'])} parameters, drafts {head['columns']} ids"
    return [
        ("Head", f"{head['family']}, {size}, from {head['source']}"),
        ("Drafts", f"{machine['drafts_a_cycle']} a cycle, from the head alone"),
    ]


def _scores(report: Report, temperature: float) -> str:
    of_it = [row for row in report.table if row["temperature"] == temperature]
    prefix, depth = label(temperature), report.machine["drafts_a_cycle"]
    names = [f"{prefix}_acceptance_{d}" for d in range(1, depth + 1)]
    names.append(f"{prefix}_tokens_a_cycle")
    lines = []
    for domain in dict.fromkeys(row["domain"] for row in of_it):
        in_it = [row for row in of_it if row["domain"] == domain]
        values = [report.domains.get(name, {}).get(domain) for name in names]
        lines.append((domain, *map(_shown, values), *_sizes(in_it)))
    averages = [report.ratios.get(name) for name in names]
    lines.append(("average", *map(_shown, averages), *_sizes(of_it)))
    depths = [f"depth {d}" for d in range(1, depth + 1)]
    header = ["DOMAIN", *depths, "tok/cycle", "cycles", "texts", "cut"]
    return f"{_name(temperature)}:\n{table(header, lines)}"


def _name(temperature: float) -> str:
    return f"Temperature {temperature:g}, coupled" if temperature else "Greedy"


def _sizes(rows: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    cut = sum(row["loops_at"] is not None for row in rows)
    return str(sum(row["cycles"] for row in rows)), str(len(rows)), str(cut)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _equality(report: Report) -> str:
    if report.ids_equal is None:
        return "Nothing was decoded greedily, so nothing was compared with mode ar."
    if report.ids_equal:
        return "Greedy texts are those of mode ar, token for token."
    lines = [
        (row["prompt"], str(row["diverges_at"]), f"{row['top2_margin']:.2g}")
        for row in report.table
        if row["diverges_at"] is not None
    ]
    return (
        "Greedy texts that differ from those of mode ar.\n"
        "A margin near zero is a near tie, which rounding may turn:\n"
        + table(("PROMPT", "FROM TOKEN", "TOP-2 MARGIN"), lines)
    )
