"""``%mtplx tune``: which number of drafts a cycle is fastest, for this model on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from mtplx_kernel.checks.asking import ask
from mtplx_kernel.checks.prompts import first_prompts, whole
from mtplx_kernel.checks.rounds import LEAST_TOKENS, MAX_TOKENS, encoded, in_turn
from mtplx_kernel.checks.tune_report import Setting, TuneReport, TuneRow, best_of
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.engine.defaults import TUNED
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.models.measured import Tuned, keep_tuned
from mtplx_kernel.models.progress import ProgressBar

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.engine.request import Generation

DEEPEST = 4
ROUNDS = 2
LEAD = 1.02
"""A fixed depth must be this much faster than the engine's own choice, which adapts to new text."""
UNDO = "tune --forget undoes it"


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt answered once in one setting."""

    tok_s: float
    tokens_per_cycle: float
    drafted: int
    accepted: int
    ids: tuple[int, ...]

    @classmethod
    def of(cls, generation: Generation) -> Run:
        """What of an answer is compared."""
        stats = generation.stats
        # Answers have a fixed length that no first cycle reaches.
        assert stats.decode_tok_s is not None
        assert stats.tokens_per_cycle is not None
        return cls(
            tok_s=stats.decode_tok_s,
            tokens_per_cycle=stats.tokens_per_cycle,
            drafted=sum(stats.drafted_by_depth or ()),
            accepted=sum(stats.accepted_by_depth or ()),
            ids=generation.token_ids,
        )


Runs = Mapping[Setting, Sequence[Sequence[Run]]]
"""The runs of each setting: a list a prompt, in it one a round."""


def tune(
    engine: Engine,
    *,
    max_depth: int | None = None,
    prompts: int | None = None,
    max_tokens: int | None = None,
    keep: bool = True,
    progress: bool = True,
) -> TuneReport:
    """Measure mode ar, depths 1 to k and the engine's own choice side by side; keep the best.

    Parameters
    ----------
    engine
        A loaded engine that can draft, used by nobody else meanwhile.
    max_depth
        The deepest fixed depth; None takes 4.
    prompts
        How many of the built-in prompts; None takes all.
    max_tokens
        Tokens an answer; end tokens do not end it.
    keep
        Use the best from now on: in this engine, and whenever this model is loaded here.
    progress
        Show a progress bar where somebody watches.

    Raises
    ------
    InvalidRequest
        If an option is wrong, or the model cannot draft.
    RequestFailed, EngineClosed
        If an answer ends with an error; then nothing is kept.
    """
    deepest = whole("max_depth", max_depth, 1, MAX_DEPTH, default=DEEPEST)
    length = whole("max_tokens", max_tokens, LEAST_TOKENS, None, default=MAX_TOKENS)
    questions = first_prompts(prompts)
    if engine.mode_reason is not None:
        raise InvalidRequest(f"there is no depth to tune: {engine.mode_reason}")
    ids = encoded(engine, questions, length)
    fixed = [Setting("mtp", depth) for depth in range(1, deepest + 1)]
    settings = [Setting("ar", 0), *fixed, Setting("mtp", None)]
    started = time.perf_counter()
    total = len(settings) * (1 + ROUNDS * len(ids))
    with (
        _own_choice(engine),
        ProgressBar(wanted=progress, total=total, desc="tuning", unit="run") as bar,
    ):
        runs = _run_all(engine, settings, ids, length, bar.update)
    rows = tuple(_row(setting, runs) for setting in settings)
    best = best_of(rows, LEAD)
    answers, differing = _against_ar(runs)
    return TuneReport(
        model=engine.name,
        arithmetic=f"{engine.facts.precision}, {engine.status()['blas']['description']}",
        rows=rows,
        best=best,
        answers=answers,
        differing=differing,
        kept=_put_in_force(engine, best) if keep else "as before: nothing was kept (--no-keep)",
        seconds=time.perf_counter() - started,
    )


def forget(engine: Engine) -> str:
    """Undo a tuning: the engine chooses the depth again, now and in later loads.

    Returns
    -------
    str
        One line for people.
    """
    problem = keep_tuned(engine.measured_key, None)
    engine.set_default_depth(None)
    line = "The tuning is forgotten: the engine chooses the depth itself"
    return f"{line}, until the next load: {problem}" if problem else f"{line}."


def _put_in_force(engine: Engine, best: Setting) -> str:
    engine.set_default_depth(best.depth, TUNED if best.depth is not None else None)
    problem = keep_tuned(engine.measured_key, Tuned(best.depth, time.time()))
    if problem:
        return f"in this engine only, as {problem}; {UNDO}"
    return f"from now on, whenever this model is loaded here; {UNDO}"


@contextmanager
def _own_choice(engine: Engine) -> Iterator[None]:
    """Let the engine choose the depth of requests that name none, until the end."""
    before, reason = engine.default_depth, engine.status()["depth"]["reason"]
    engine.set_default_depth(None)
    try:
        yield
    finally:
        if not engine.closed:
            engine.set_default_depth(before, reason)


def _run_all(
    engine: Engine,
    settings: Sequence[Setting],
    prompts: Sequence[Sequence[int]],
    length: int,
    done: Callable[[], object],
) -> Runs:
    """Run each prompt in all settings in turn, once to warm up and then in rounds."""
    runs: dict[Setting, list[list[Run]]] = {s: [[] for _ in prompts] for s in settings}

    def run(setting: Setting, prompt: Sequence[int]) -> Run:
        generation = ask(
            engine,
            prompt,
            mode=setting.mode,
            depth=setting.depth,
            max_tokens=length,
            ignore_eos=True,
        )
        done()
        return Run.of(generation)

    for setting in settings:
        run(setting, prompts[0])
    for turn in range(ROUNDS):
        for place, prompt in enumerate(prompts):
            for setting in in_turn(settings, turn + place):
                runs[setting][place].append(run(setting, prompt))
    return runs


def _row(setting: Setting, runs: Runs) -> TuneRow:
    plain = runs[Setting("ar", 0)]
    ratios = [
        [own.tok_s / ar.tok_s for own, ar in zip(of_prompt, of_ar, strict=True)]
        for of_prompt, of_ar in zip(runs[setting], plain, strict=True)
    ]
    every = [run for of_prompt in runs[setting] for run in of_prompt]
    return TuneRow(
        setting=setting,
        tok_s=median(run.tok_s for run in every),
        ratio=median(ratio for of_prompt in ratios for ratio in of_prompt),
        worst=min(median(of_prompt) for of_prompt in ratios),
        tokens_per_cycle=fmean(run.tokens_per_cycle for run in every),
        drafted=sum(run.drafted for run in every),
        accepted=sum(run.accepted for run in every),
    )


def _against_ar(runs: Runs) -> tuple[int, int]:
    """How many answers of mode mtp there are, and how many differ from those of mode ar."""
    pairs = [
        (own.ids, ar.ids)
        for setting, of_setting in runs.items()
        if setting.mode == "mtp"
        for of_prompt, of_ar in zip(of_setting, runs[Setting("ar", 0)], strict=True)
        for own, ar in zip(of_prompt, of_ar, strict=True)
    ]
    return len(pairs), sum(own != ar for own, ar in pairs)
