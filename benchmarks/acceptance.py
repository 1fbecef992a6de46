"""How many of a head's drafts a model accepts, in real decoding over the held-out prompts.

`python -m benchmarks.acceptance [--model NAME] [--head auto|none|PATH] [--columns N] [--depth K]
[--temperature 0,0.8] [--prompts-a-domain N] [--max-tokens N] [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import acceptance_page, machine, scores
from benchmarks.head_side import HeadSide, load_side
from benchmarks.measure import BenchmarkFailed, EncodedPrompt
from benchmarks.options import temperatures, whole
from benchmarks.page import Report
from benchmarks.scores import Text
from benchmarks.summary import first_difference
from mtplx_kernel.decoding.params import MAX_DEPTH, GenerationMode, SamplingParams
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.errors import MTPLXError
from mtplx_kernel.models import blas
from mtplx_kernel.models.progress import ProgressBar
from mtplx_kernel.training.heldout import DOMAINS, HELD_OUT

DEPTH = 3
MAX_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Plan:
    """What to decode.

    Attributes
    ----------
    depth
        Drafts a cycle.
    """

    depth: int
    temperatures: tuple[float, ...]
    max_tokens: int

    def params(self, temperature: float) -> SamplingParams:
        """The options of a request at a temperature."""
        return SamplingParams(max_tokens=self.max_tokens, temperature=temperature, depth=self.depth)


def prompts_of(side: HeadSide, each: int) -> list[EncodedPrompt]:
    """The first `each` held-out prompts of every domain, as the model reads them."""
    encoder = PromptEncoder(side.loaded.tokenizer, side.loaded.facts)
    return [
        EncodedPrompt(prompt.name, prompt.domain, encoder.encode(prompt.text))
        for domain in DOMAINS
        for prompt in [p for p in HELD_OUT if p.domain == domain][:each]
    ]


def measure(side: HeadSide, prompts: Sequence[EncodedPrompt], plan: Plan) -> Report:
    """Decode every prompt at every temperature; where that is 0, in mode ar as well."""
    described = describe(side, plan)
    runs = len(prompts) * (len(plan.temperatures) + (0.0 in plan.temperatures))
    texts: list[Text] = []
    with ProgressBar(total=runs, desc="acceptance", unit="run") as bar:
        for temperature in plan.temperatures:
            for number, prompt in enumerate(prompts):
                texts.append(_text(side, prompt, plan.params(temperature), number, bar.update))
    values = scores.values_by_domain(texts, depth_of(side, plan))
    greedy = [text for text in texts if text.temperature == 0]
    return Report(
        benchmark="acceptance",
        model=side.loaded.facts.name,
        machine=described,
        ratios=scores.averages(values),
        ids_equal=all(text.diverges_at is None for text in greedy) if greedy else None,
        table=scores.table(texts, depth_of(side, plan)),
        domains=values,
    )


def depth_of(side: HeadSide, plan: Plan) -> int:
    """Drafts a cycle: a head of several stages gives no more than it has of those."""
    if side.head is None:
        return 0
    return plan.depth if side.head.stages == 1 else min(plan.depth, side.head.stages)


def describe(side: HeadSide, plan: Plan) -> dict[str, Any]:
    """The machine, the head and the options, as plain data."""
    status = blas.current()
    assert status is not None  # decided at load
    loaded = side.loaded
    head = None
    if loaded.head is not None:
        head = {
            "family": loaded.head.facts.family,
            "source": loaded.head.facts.source,
            "parameters": loaded.head.facts.parameters,
            "columns": side.columns,
        }
    return {
        **machine.describe(loaded.facts.precision, status.description, status.threads),
        "head": head,
        "drafts_a_cycle": depth_of(side, plan),
        "max_tokens": plan.max_tokens,
    }


def _text(
    side: HeadSide,
    prompt: EncodedPrompt,
    params: SamplingParams,
    seed: int,
    done: Callable[[], object],
) -> Text:
    """Decode one prompt; greedily also in mode ar, and compare."""
    found = side.answer(prompt.ids, GenerationMode.MTP, params, seed)
    done()
    if not params.greedy:
        return Text(prompt, params.temperature, found)
    expected = side.answer(prompt.ids, GenerationMode.AR, params).ids
    done()
    if found.ids == expected:
        return Text(prompt, params.temperature, found)
    at = first_difference(expected, found.ids)
    margin = side.margin([*prompt.ids, *expected[:at]])
    return Text(prompt, params.temperature, found, at, margin)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line; wrong ones end the process with one line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.acceptance",
        description="Decodes held-out prompts with an MTP head alone and counts accepted drafts.",
    )
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id")
    parser.add_argument("--head", default="auto", help="auto, none, or the path of a head")
    parser.add_argument(
        "--columns",
        type=whole(1),
        help="let a distilled head draft only its N most frequent ids",
    )
    parser.add_argument("--depth", type=whole(1, MAX_DEPTH), default=DEPTH, help="drafts a cycle")
    parser.add_argument(
        "--temperature", type=temperatures, default=(0.0, 0.8), help="one or more: 0,0.8"
    )
    most = max(sum(p.domain == domain for p in HELD_OUT) for domain in DOMAINS)
    parser.add_argument(
        "--prompts-a-domain", type=whole(1, most), default=most, help="take the first N of each"
    )
    parser.add_argument("--max-tokens", type=whole(1), default=MAX_TOKENS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if it could not be run."""
    options = arguments(given)
    plan = Plan(options.depth, options.temperature, options.max_tokens)
    try:
        side = load_side(options.model, options.head, options.columns)
        report = measure(side, prompts_of(side, options.prompts_a_domain), plan)
    except (BenchmarkFailed, MTPLXError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(report)) if options.json else acceptance_page.text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
