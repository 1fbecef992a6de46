"""``%mtplx verify``: are answers the same in modes ar and mtp, and under hyper, here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mtplx_kernel.checks.comparing import Comparer, Question, Sampling
from mtplx_kernel.checks.hyper_parity import check_parity
from mtplx_kernel.checks.prompts import LAW_PROMPT, first_prompts, whole
from mtplx_kernel.checks.sampling_law import check_law
from mtplx_kernel.checks.verify_report import VerifyReport
from mtplx_kernel.decoding.params import Acceptance, SamplingParams
from mtplx_kernel.engine.prompts import PromptEncoder
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.models.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtplx_kernel.engine.engine import Engine

MAX_TOKENS = 48
GREEDY_DEPTH = 4
TEMPERATURE = 0.8
DRAWS = 64
PARITY_PROMPTS = 3
"""How many of the prompts are answered under hyper too."""


def verify(
    engine: Engine,
    *,
    prompts: int | None = None,
    max_tokens: int | None = None,
    depth: int | None = None,
    temperature: float | None = None,
    draws: int | None = None,
    progress: bool = True,
) -> VerifyReport:
    """Compare modes ar and mtp over built-in prompts, and hyper with serial; test sampling's law.

    Parameters
    ----------
    engine
        A loaded engine that can draft; it may be used by others meanwhile, but then hyper is left
        out. Its scheduler is as before at the end, however that comes.
    prompts
        How many of the built-in prompts; None takes all.
    max_tokens
        Most tokens an answer.
    depth
        Drafts a cycle. None drafts 4 in the greedy runs, and in the sampled ones as many as the
        engine chooses.
    temperature
        Of the sampled runs; 0 leaves them out.
    draws
        Seeds an acceptance rule in the test of the sampling law; 0 leaves it out.
    progress
        Show a progress bar where somebody watches.

    Raises
    ------
    InvalidRequest
        If an option is wrong, or the model cannot draft.
    EngineClosed
        If the engine ends meanwhile. A request that fails is a finding.
    """
    questions = first_prompts(prompts)
    length = whole("max_tokens", max_tokens, 1, None, default=MAX_TOKENS)
    seeds = whole("draws", draws, 0, None, default=DRAWS)
    warm = TEMPERATURE if temperature is None else temperature
    SamplingParams(temperature=warm, depth=depth)
    if engine.mode_reason is not None:
        raise InvalidRequest(f"there are no drafts to verify: {engine.mode_reason}")
    encoder, comparer = PromptEncoder(engine.tokenizer, engine.facts), Comparer(engine)
    ways = 2 if warm else 1
    plan = [
        Question(
            prompt.name,
            encoder.encode(prompt.text),
            sampling,
            max_tokens=length,
            depth=GREEDY_DEPTH if depth is None and not sampling.temperature else depth,
        )
        for seed, prompt in enumerate(questions, start=1)
        for sampling in (Sampling(), Sampling(warm, seed))[:ways]
    ]
    hyper_runs = 2 * len(plan[: PARITY_PROMPTS * ways])
    rules: Sequence[Acceptance] = tuple(Acceptance) if warm and seeds else ()
    started = time.perf_counter()
    rows, laws = [], []
    total = len(plan) + hyper_runs + seeds * len(rules)
    with ProgressBar(wanted=progress, total=total, desc="verifying", unit="run") as bar:
        for question in plan:
            rows.append(comparer.compare(question))
            bar.update()
        answered = list(zip(plan, rows, strict=True))[: PARITY_PROMPTS * ways]
        hyper = check_parity(engine, comparer, answered, done=bar.update)
        law_ids = encoder.encode(LAW_PROMPT, raw=True)
        for rule in rules:
            laws.append(
                check_law(
                    engine, comparer, law_ids, rule, temperature=warm, draws=seeds, done=bar.update
                )
            )
    status = engine.status()
    return VerifyReport(
        model=engine.name,
        arithmetic=f"{engine.facts.precision}, {status['blas']['description']}",
        drafters=tuple(status.get("drafters", ())),
        tolerance=comparer.tolerance,
        rows=tuple(rows),
        laws=tuple(laws),
        hyper=hyper,
        seconds=time.perf_counter() - started,
    )
