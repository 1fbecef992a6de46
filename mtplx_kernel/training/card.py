"""The page that goes with a head: what it is, how it was made, how well it guesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write(metrics: dict[str, Any], model: Path) -> str:
    """A model card in Markdown, from the figures of a distillation."""
    options, text, training = metrics["options"], metrics["text"], metrics["training"]
    drafted = metrics["draft_vocabulary"]
    lines = [
        f"# A draft head for {metrics['model']}",
        "",
        "It guesses the tokens after the next; the model verifies every guess, so the head changes",
        "the speed of decoding and never its result. Distilled with `mtplx_kernel.training`.",
        "",
        "## Data",
        f"{text['tokens_written']:,} tokens that the model wrote by itself, from prompt templates,",
        "openings that it continued, and questions that it invented, at temperatures 0, 0.5, 0.8",
        f"and 1. {text['share_looping']:.1%} of the rows began to repeat themselves: they count up",
        "to there, and were dropped where little was left.",
        f"{text['tokens']:,} tokens remained, {text['answer_tokens']:,} of them in answers. No row",
        "holds a prompt of the evaluation.",
        "",
        "## Recipe",
        f"One decoder block{_width(options['width'])} over the model's states at three depths and",
        "the embedding of the next token,",
        f"with the model's own output head over its {drafted['ids']:,} most frequent tokens",
        f"({drafted['covers']:.1%} of its answers). Trained {options['depth']} passes deep for",
        f"{training['steps']:,} steps of {options['rows']} rows of {options['length']} tokens in",
        f"{training['seconds'] / 60:.1f} minutes (seed {options['seed']}): Kullback-Leibler",
        "divergence to the model, then also",
        f"the chance of acceptance at temperature {options['aim']}; Muon and AdamW.",
        *_before(options, metrics["before"]),
        "",
        "## Acceptance",
        *_acceptance(metrics["evaluation"]),
        "",
        "## Licence",
        _licence(model),
        "",
    ]
    return "\n".join(lines)


def _width(width: int | None) -> str:
    return "" if width is None else f", with a feed-forward layer of {width:,} columns,"


def _acceptance(evaluation: list[dict[str, Any]]) -> list[str]:
    """How often it was right, where it was judged."""
    if not evaluation:
        return ["It was not judged."]
    lines = [
        "Held-out prompts in six domains; conditional acceptance by depth, and tokens a cycle with",
        "1, 2, 3 and 4 drafts. Means over the domains.",
        "",
        "| temperature | draft vocabulary | acceptance | tokens a cycle |",
        "|---|---|---|---|",
    ]
    for found in evaluation:
        lines.append(_row(found["temperature"], found["columns"], found["overall"]))
    widest = {found["temperature"]: found for found in evaluation}
    for found in widest.values():
        lines += ["", f"By domain, temperature {found['temperature']}:", ""]
        lines += [
            "| domain | draft vocabulary | acceptance | tokens a cycle |",
            "|---|---|---|---|",
        ]
        lines += [_row(name, found["columns"], s) for name, s in found["domains"].items()]
    return lines


def _before(options: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    """What the head had learnt before."""
    lines = []
    for run in runs:
        training, shape, text = run["training"], run["options"], run["text"]
        lines += [
            f"Before that: {training['steps']:,} steps of {shape['rows']} rows of",
            f"{shape['length']} tokens in {training['seconds'] / 60:.1f} minutes, on",
            f"{text['answer_tokens']:,} answer tokens written for that run.",
        ]
    if options["begin"] is not None and not runs:
        lines.append("It began with another head, of which nothing is told here.")
    return lines


def _row(first: object, columns: int, scores: dict[str, Any]) -> str:
    acceptance = " ".join(f"{x:.3f}" for x in scores["acceptance"])
    rates = " ".join(f"{x:.2f}" for x in scores["tokens_a_cycle"])
    return f"| {first} | {columns:,} | {acceptance} | {rates} |"


def _licence(model: Path) -> str:
    path = model / "LICENSE"
    if not path.exists():
        return "Derived from the base model: its licence applies."
    first = next((line.strip() for line in path.read_text().splitlines() if line.strip()), "")
    return f"Derived from the base model: its licence applies ({first})."
