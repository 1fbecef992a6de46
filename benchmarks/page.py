"""A decode benchmark's report as text that fits a narrow window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mtplx_kernel.report import labelled, size, table

COLUMNS = {"mlx_lm": "mlx-lm", "mlx_lm_stock": "stock", "ar": "ar", "mtp": "mtp"}
DOMAIN_COLUMNS = {"mtp_vs_ar_domains": "mtp/ar", "mtp_vs_mlx_lm_domains": "mtp/mlx-lm"}
MEANINGS = {
    "ar_vs_mlx_lm": "mode ar against mlx-lm, same process and BLAS",
    "ar_vs_mlx_lm_stock": "mode ar against mlx-lm with MLX's own BLAS",
    "mtp_vs_ar": "mode mtp against mode ar",
    "mtp_vs_ar_worst": "the same, on the prompt where mtp does worst",
    "mtp_vs_ar_domains": "mode mtp against mode ar, mean of the domains",
    "mtp_vs_mlx_lm": "mode mtp against mlx-lm, same process and BLAS",
    "mtp_vs_mlx_lm_domains": "mode mtp against mlx-lm, mean of the domains",
    "bandwidth_share": "mode ar's weight reads, of memory bandwidth",
}
ENOUGH_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark found; the JSON object has the same fields.

    Attributes
    ----------
    ratios
        What the benchmark is for.
    ids_equal
        Whether all compared tokens are the same; None where none were compared.
    table
        One row for each measured thing.
    domains
        For each ratio that is a mean over domains, its value in each domain.
    """

    benchmark: str
    model: str
    machine: dict[str, Any]
    ratios: dict[str, float]
    ids_equal: bool | None
    table: list[dict[str, Any]]
    domains: dict[str, dict[str, float]]


def text(report: Report) -> str:
    """The report for people."""
    rounds = report.table[0]["rounds"]
    few = (
        ""
        if rounds >= ENOUGH_ROUNDS
        else f"\nToo few rounds to quote: repeat {ENOUGH_ROUNDS} times."
    )
    parts = [
        f"{report.benchmark}: {report.model}, {report.table[0]['tokens']} tokens a run, "
        f"medians of {rounds} {'round' if rounds == 1 else 'rounds'}{few}",
        labelled(_machine(report.machine)),
        "Tokens a second after the first, by side; tokens a cycle of mode mtp:\n"
        + _prompts(report.table),
        _domains(report),
        "Milliseconds to the first token:\n" + _first_tokens(report.table),
        "Ratios:\n"
        + table(
            ("RATIO", "VALUE", "MEANING"),
            [(n, f"{report.ratios[n]:.3f}", m) for n, m in MEANINGS.items() if n in report.ratios],
        ),
        _equality(report),
    ]
    return "\n\n".join(parts)


def machine_rows(machine: dict[str, Any]) -> list[tuple[str, str]]:
    """What any benchmark says of its machine, as labels and texts."""
    rows = [
        ("Machine", f"{machine['processor']}, {machine['cpus']} CPUs, {machine['system']}"),
        ("Precision", machine["precision"]),
        ("BLAS", machine["blas"]),
        ("Load", f"{machine['load_average']} at the start (idle is near 0)"),
    ]
    if machine["gpu"]:
        rows.insert(1, ("GPU", machine["gpu"]))
    return rows


def _machine(machine: dict[str, Any]) -> list[tuple[str, str]]:
    rows = machine_rows(machine)
    if machine["blas_stock"]:
        rows.append(("Stock BLAS", machine["blas_stock"]))
    rows += [
        ("Memory reads", f"{size(machine['bandwidth_bytes_s'])}/s, measured between the rounds"),
        ("Weights", f"{size(machine['weight_bytes'])} a token"),
    ]
    if machine["mtp_reason"]:
        rows.append(("No mtp", machine["mtp_reason"]))
    return rows


def _prompts(rows: Sequence[dict[str, Any]]) -> str:
    sides = _sides(rows)
    lines = []
    for name, of_name in _grouped(rows, lambda row: row["prompt"]).items():
        by_side = {row["side"]: [row] for row in of_name}
        cells = _rates(by_side, sides)
        if "mtp" in by_side:
            mtp = by_side["mtp"][0]
            cells += [f"{mtp['tok_s'] / by_side['ar'][0]['tok_s']:.2f}"]
            cells += [f"{mtp['tokens_per_cycle']:.2f}"]
        lines.append((name, *cells))
    header = ["PROMPT", *(COLUMNS[side] for side in sides)]
    return table(header + (["mtp/ar", "tok/cycle"] if "mtp" in sides else []), lines)


def _domains(report: Report) -> str:
    """By domain: speeds, and the ratios that are averaged over domains."""
    sides, names = _sides(report.table), list(report.domains)
    lines = []
    for domain, of_domain in _grouped(report.table, lambda row: row["domain"]).items():
        by_side = _grouped(of_domain, lambda row: row["side"])
        cells = _rates(by_side, sides)
        if "mtp" in by_side:
            cells += [f"{report.domains[name][domain]:.3f}" for name in names]
            cells += [f"{median(row['tokens_per_cycle'] for row in by_side['mtp']):.2f}"]
        lines.append((domain, *cells))
    header = ["DOMAIN", *(COLUMNS[side] for side in sides)]
    if not names:
        return "By domain:\n" + table(header, lines)
    averages = [f"{report.ratios[name]:.3f}" for name in names]
    lines.append(("average", *("" for _ in sides), *averages, ""))
    return (
        "By domain. Ratios are of all tokens of a domain's prompts, medians of the\n"
        "rounds; their averages are means over the domains, which all count alike:\n"
        + table([*header, *(DOMAIN_COLUMNS[name] for name in names), "tok/cycle"], lines)
    )


def _rates(by_side: Mapping[str, Sequence[dict[str, Any]]], sides: Sequence[str]) -> list[str]:
    return [f"{_mean_rate(by_side[side]):.1f}" for side in sides]


def _first_tokens(rows: Sequence[dict[str, Any]]) -> str:
    sides = _sides(rows)
    lines = []
    for name, of_name in _grouped(rows, lambda row: row["prompt"]).items():
        by_side = {row["side"]: f"{1000 * row['ttft_s']:.0f}" for row in of_name}
        lines.append((name, str(of_name[0]["prompt_tokens"]), *(by_side[side] for side in sides)))
    return table(["PROMPT", "tokens", *(COLUMNS[side] for side in sides)], lines)


def _mean_rate(rows: Sequence[dict[str, Any]]) -> float:
    """Rate over several prompts of one length: tokens over seconds, so a harmonic mean."""
    seconds_a_token: list[float] = [1 / row["tok_s"] for row in rows]
    return len(rows) / sum(seconds_a_token)


def _equality(report: Report) -> str:
    if report.ids_equal:
        return "All sides gave the same tokens in all runs."
    lines = [
        (
            row["prompt"],
            COLUMNS[row["side"]],
            f"{row['differing_runs']} of {row['rounds']}",
            str(row["diverges_at"]),
            f"{row['top2_margin']:.2g}",
        )
        for row in report.table
        if row["differing_runs"]
    ]
    return (
        "Tokens differ from those of mlx-lm's first run in the same process.\n"
        "A margin near zero is a near tie, which rounding may turn:\n"
        + table(("PROMPT", "SIDE", "RUNS", "FROM TOKEN", "TOP-2 MARGIN"), lines)
    )


def _sides(rows: Sequence[dict[str, Any]]) -> list[str]:
    present = {row["side"] for row in rows}
    return [side for side in COLUMNS if side in present]


def _grouped(
    rows: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], str]
) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
