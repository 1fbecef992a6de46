"""From runs to what is reported: rates, ratios, and where sides gave different tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.measure import EncodedPrompt, Run, Runs

RATIOS = {
    "ar_vs_mlx_lm": ("ar", "mlx_lm"),
    "ar_vs_mlx_lm_stock": ("ar", "mlx_lm_stock"),
    "mtp_vs_ar": ("mtp", "ar"),
    "mtp_vs_mlx_lm": ("mtp", "mlx_lm"),
}
DOMAIN_RATIOS = {
    "mtp_vs_ar_domains": ("mtp", "ar"),
    "mtp_vs_mlx_lm_domains": ("mtp", "mlx_lm"),
}


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a side first gave another token than the reference did.

    Attributes
    ----------
    runs
        In how many of the side's runs on this prompt any token was another.
    at
        Position in the output of the first run that differs.
    margin
        Difference between the two largest logits there, as the reference's model computes them:
        near zero it is a near tie, which rounding may turn; far from zero it is an error.
    """

    prompt: str
    side: str
    runs: int
    at: int
    margin: float


def rates(runs: Runs, side: str) -> list[float]:
    """A side's tokens a second in each round: all its tokens over all its seconds."""
    of_side = [found for (_, name), found in runs.items() if name == side]
    return [
        sum(run.decoded for run in one) / sum(run.decode_s for run in one)
        for one in zip(*of_side, strict=True)
    ]


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median over rounds of the ratio within each round."""
    return median(a / b for a, b in zip(over, under, strict=True))


def ratios(
    runs: Runs, bandwidths: Sequence[float], weight_bytes: int, sides: Sequence[str]
) -> dict[str, float]:
    """Every ratio whose sides were run.

    Parameters
    ----------
    bandwidths
        Bytes a second, measured in each round.
    weight_bytes
        Read for each token of mode ar.
    """
    by_side = {side: rates(runs, side) for side in sides}
    found = {
        name: ratio(by_side[over], by_side[under])
        for name, (over, under) in RATIOS.items()
        if over in by_side and under in by_side
    }
    if "mtp" in by_side:
        found["mtp_vs_ar_worst"] = min(
            ratio([run.tok_s for run in runs[prompt, "mtp"]], [run.tok_s for run in of_ar])
            for (prompt, side), of_ar in runs.items()
            if side == "ar"
        )
    read = [rate * weight_bytes for rate in by_side["ar"]]
    found["bandwidth_share"] = ratio(read, bandwidths)
    return found


def domain_ratios(
    runs: Runs, prompts: Sequence[EncodedPrompt], sides: Sequence[str]
) -> dict[str, dict[str, float]]:
    """For each ratio that is averaged over domains, its value in each: of that domain's runs alone.

    The values are computed as those of `ratios`; names are left out whose sides were not run.
    """
    names: dict[str, set[str]] = {}
    for prompt in prompts:
        names.setdefault(prompt.domain, set()).add(prompt.name)
    parts = {
        domain: {key: found for key, found in runs.items() if key[0] in of_domain}
        for domain, of_domain in names.items()
    }
    return {
        name: {
            domain: ratio(rates(part, over), rates(part, under)) for domain, part in parts.items()
        }
        for name, (over, under) in DOMAIN_RATIOS.items()
        if over in sides and under in sides
    }


def divergences(
    runs: Runs,
    prompts: Sequence[EncodedPrompt],
    reference: str,
    margin: Callable[[Sequence[int]], float],
) -> list[Divergence]:
    """Every prompt and side with a run whose ids are not those of the reference's first run.

    Parameters
    ----------
    margin
        Difference between the two largest logits after some ids.
    """
    found = []
    for prompt in prompts:
        expected = runs[prompt.name, reference][0].ids
        for (name, side), of_side in runs.items():
            wrong = [run.ids for run in of_side if run.ids != expected]
            if name == prompt.name and wrong:
                at = first_difference(expected, wrong[0])
                gap = margin([*prompt.ids, *expected[:at]])
                found.append(Divergence(name, side, len(wrong), at, gap))
    return found


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int:
    """Position of the first id that differs; the shorter length where none does."""
    pairs = zip(expected, found, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))


def table(
    runs: Runs,
    prompts: Sequence[EncodedPrompt],
    sides: Sequence[str],
    differing: Sequence[Divergence],
) -> list[dict[str, Any]]:
    """One plain row for each prompt and side; times and rates are medians over the rounds."""
    by_key = {(d.prompt, d.side): d for d in differing}
    return [
        _row(prompt, side, runs[prompt.name, side], by_key.get((prompt.name, side)))
        for prompt in prompts
        for side in sides
    ]


def _row(
    prompt: EncodedPrompt, side: str, runs: Sequence[Run], differs: Divergence | None
) -> dict[str, Any]:
    speeds = sorted(run.tok_s for run in runs)
    return {
        "prompt": prompt.name,
        "domain": prompt.domain,
        "side": side,
        "rounds": len(runs),
        "prompt_tokens": len(prompt.ids),
        "tokens": len(runs[0].ids),
        "tok_s": round(median(speeds), 3),
        "tok_s_low": round(speeds[0], 3),
        "tok_s_high": round(speeds[-1], 3),
        "ttft_s": round(median(run.ttft_s for run in runs), 5),
        "tokens_per_cycle": round(median(run.tokens_per_cycle for run in runs), 3),
        "differing_runs": 0 if differs is None else differs.runs,
        "diverges_at": None if differs is None else differs.at,
        "top2_margin": None if differs is None else differs.margin,
    }
