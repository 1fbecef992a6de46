"""Draws docs/ar-against-mtp.png from a real run: tokens over time, in both generation modes."""

from __future__ import annotations

import time
from pathlib import Path

import mtplx_kernel as mk

TARGET = Path(__file__).with_name("ar-against-mtp.png")
MODEL = "smollm2-135m"
PROMPT = (
    "Copy this text exactly, word for word:\n\n"
    "The river runs past the old mill, under the stone bridge and down to the sea. In spring the "
    "river runs high, and the old mill turns all day. In summer the river runs low, and children "
    "play under the stone bridge."
)
COLOURS = {"ar": "#8a6d3b", "mtp": "#1f6feb"}


def arrivals(engine: mk.Engine, mode: str) -> tuple[list[float], mk.Generation]:
    """Seconds from submit to each token, and the generation."""
    times: list[float] = []
    started = time.perf_counter()
    generation = engine.generate(
        PROMPT,
        mode=mode,
        max_tokens=128,
        on_token=lambda token_id, text: times.append(time.perf_counter() - started),
    )
    return times, generation


def draw(runs: dict[str, list[float]], same: bool, target: Path) -> None:
    """Draw one step line a mode; `same` says whether both gave the same tokens."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for mode, times in runs.items():
        counts = range(1, len(times) + 1)
        axes.step(times, counts, where="post", color=COLOURS[mode], linewidth=2)
        axes.annotate(
            f"{mode}: {times[-1]:.2f} s",
            (times[-1], len(times)),
            xytext=(-6, 6),
            textcoords="offset points",
            ha="right",
            color=COLOURS[mode],
            weight="bold",
        )
    axes.margins(y=0.12)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the question was asked")
    axes.set_ylabel("tokens")
    axes.set_title(f"{MODEL} copying a text: {'the same' if same else 'different'} tokens")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target)


def main() -> None:
    """Run both modes once to warm up and once to draw."""
    with_modes = tuple(COLOURS)
    engine = mk.load(MODEL)
    try:
        for mode in with_modes:
            arrivals(engine, mode)
        results = {mode: arrivals(engine, mode) for mode in with_modes}
    finally:
        engine.close()
    same = results["ar"][1].token_ids == results["mtp"][1].token_ids
    draw({mode: times for mode, (times, _) in results.items()}, same, TARGET)
    print(f"drew {TARGET.name}")


if __name__ == "__main__":
    main()
