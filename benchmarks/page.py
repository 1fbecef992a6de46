"""A decode benchmark's report as text that fits a narrow window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mtplx_kernel.report import labelled, size, table

COLUMNS = {"mlx_lm": "mlx-lm", "mlx_lm_stock": "stock", "ar": "ar", "mtp": "mtp"}
MEANINGS = {
    "ar_vs_mlx_lm": "mode ar against mlx-lm, same process and BLAS",
    "ar_vs_mlx_lm_stock": "mode ar against mlx-lm with MLX's own BLAS",
    "mtp_vs_ar": "mode mtp against mode ar",
    "mtp_vs_ar_worst": "the same, on the prompt where mtp does worst",
    "bandwidth_share": "mode ar's weight reads, of memory bandwidth",
}
ENOUGH_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark found; the JSON object has the same fields."""

    benchmark: str
    model: str
    machine: dict[str, Any]
    ratios: dict[str, float]
    ids_equal: bool
    table: list[dict[str, Any]]


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
        + _speeds(report.table, "prompt"),
        "By kind of text:\n" + _speeds(report.table, "domain"),
        "Milliseconds to the first token:\n" + _first_tokens(report.table),
        "Ratios:\n"
        + table(
            ("RATIO", "VALUE", "MEANING"),
            [(name, f"{value:.3f}", MEANINGS[name]) for name, value in report.ratios.items()],
        ),
        _equality(report),
    ]
    return "\n\n".join(parts)


def _machine(machine: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("Machine", f"{machine['processor']}, {machine['cpus']} CPUs, {machine['system']}"),
        ("Precision", machine["precision"]),
        ("BLAS", machine["blas"]),
        ("Memory reads", f"{size(machine['bandwidth_bytes_s'])}/s, measured between the rounds"),
        ("Weights", f"{size(machine['weight_bytes'])} a token"),
        ("Load", f"{machine['load_average']} at the start (idle is near 0)"),
    ]
    if machine["blas_stock"]:
        rows.insert(3, ("Stock BLAS", machine["blas_stock"]))
    if machine["gpu"]:
        rows.insert(1, ("GPU", machine["gpu"]))
    if machine["mtp_reason"]:
        rows.append(("No mtp", machine["mtp_reason"]))
    return rows


def _speeds(rows: Sequence[dict[str, Any]], key: str) -> str:
    sides = _sides(rows)
    lines = []
    for name, of_name in _grouped(rows, lambda row: row[key]).items():
        by_side = _grouped(of_name, lambda row: row["side"])
        cells = [f"{_mean_rate(by_side[side]):.1f}" for side in sides]
        if "mtp" in by_side:
            cells.append(f"{_mean_rate(by_side['mtp']) / _mean_rate(by_side['ar']):.2f}")
            cells.append(f"{median(row['tokens_per_cycle'] for row in by_side['mtp']):.2f}")
        lines.append((name, *cells))
    header = [key.upper(), *(COLUMNS[side] for side in sides)]
    return table(header + (["mtp/ar", "tok/cycle"] if "mtp" in sides else []), lines)


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
