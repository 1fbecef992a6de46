"""Distilling a head: the model writes, a head learns to guess it, and is judged and saved.

Run as `python -m mtplx_kernel.training.distill MODEL_FOLDER --out DIR`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mtplx_kernel.engine.memory import budget
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.heads.distilled_file import load_distilled, save_distilled
from mtplx_kernel.models.progress import Stages, draw, untold
from mtplx_kernel.training import card
from mtplx_kernel.training.base import Base, design, load_base, new_head
from mtplx_kernel.training.evaluate import Evaluation, answer, evaluate
from mtplx_kernel.training.features import Features
from mtplx_kernel.training.heldout import DOMAINS, HELD_OUT
from mtplx_kernel.training.roles import Roles, find_roles
from mtplx_kernel.training.text import (
    Text,
    covered,
    frequent,
    joined,
    read_text,
    save_text,
    write_text,
)
from mtplx_kernel.training.train import LATE, SOON, Interrupted, Plan, train
from mtplx_kernel.training.widen import check_width, widened

GIB = 2**30
LEAST_MEMORY = 4 * GIB
"""Where a system does not tell how much it has."""
MOST_WRITING_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Options:
    """What a distillation is asked for.

    Attributes
    ----------
    tokens
        Written by the model, before loops are dropped.
    length
        Tokens of a row.
    conversation
        Tokens of a conversation; several fill a row.
    writing_rows
        Conversations written at once; None takes as many as a quarter of the memory has room for.
    rows
        Rows of a training step.
    depth
        Passes that are trained.
    minutes
        Of training, without the writing and the evaluation.
    steps
        Trains for so many steps instead.
    draft_vocab
        Ids that the head can draft.
    cache_gb
        Memory for the base's states; None takes a share of what the device has.
    judged
        Held-out prompts a domain; 0 does not judge.
    temperatures
        At which the head is judged.
    begin
        Path of a head to train on, which keeps its draft vocabulary; None begins with a copy of
        the model's last layer.
    aim
        Temperature of the decoding that the head is for: below 1, it favours the likely tokens.
    width
        Columns of the head's feed-forward layer; None leaves them as they are at the beginning.
    """

    tokens: int = 24_000_000
    length: int = 258
    conversation: int = 258
    writing_rows: int | None = None
    rows: int = 64
    depth: int = 3
    minutes: float = 15.0
    steps: int | None = None
    draft_vocab: int = 16_384
    seed: int = 0
    cache_gb: float | None = None
    judged: int = 9
    temperatures: tuple[float, ...] = (0.0, 0.8)
    begin: str | None = None
    aim: float = 1.0
    width: int | None = None

    def lasting(self) -> dict[str, Any]:
        """The settings that must stay the same when a folder is used again."""
        free = ("cache_gb", "writing_rows", "judged", "temperatures")
        return {k: v for k, v in asdict(self).items() if k not in free}


def distill(
    model: Path,
    out: Path,
    options: Options,
    *,
    progress: bool = True,
    say: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Make a head for a model; what an earlier run in the same folder finished is used again.

    Parameters
    ----------
    model
        An mlx-lm model folder.
    out
        Gets head.safetensors, README.md and metrics.json, and the files to go on from.
    options
        How much and how long.
    progress
        Show progress bars where somebody watches.
    say
        Takes a line on each part that is done, and where there is no bar, some on the training.

    Returns
    -------
    dict
        The figures that metrics.json holds.

    Raises
    ------
    InvalidRequest
        If the folder holds a run with other settings, or there is too little text.
    ModelUnusable
        If the model cannot be loaded or its states cannot be read.
    KeyboardInterrupt
        If it was interrupted; the same call goes on from there.
    """
    begin = None if options.begin is None else _file(options.begin)
    settings = {"model": model.name, **options.lasting()}
    _refuse_other(out / "settings.json", settings)
    stages = draw if progress else untold
    with _stop_requests() as asked:
        base = load_base(model, stages)
        _limit_memory()
        known = None if begin is None else load_head(base, begin)
        check_width(options.width, (design(base) if known is None else known.config).intermediate)
        out.mkdir(parents=True, exist_ok=True)
        (out / "settings.json").write_text(json.dumps(settings, indent=1))
        roles = find_roles(base.tokenizer, base.end_ids)
        metrics: dict[str, Any] = {"model": model.name, "options": asdict(options)}
        metrics["before"] = [] if begin is None else _before(begin)
        run = _Run(options, lambda: bool(asked), stages, say)
        text = _text(base, roles, out / "data.safetensors", run)
        metrics["text"] = text.figures
        head = _trainable(_fresh(base, text, options) if known is None else known, base, options)
        columns = head.vocabulary.size
        share = covered(text, base.target.vocabulary, head.vocabulary)
        metrics["draft_vocabulary"] = {"ids": columns, "covers": round(share, 4)}
        base.target.tap(head.taps)
        metrics["training"] = _train(base, head, text, out, run, progress=progress)
        path = out / "head.safetensors"
        _save(path, head, base)
        judged = _judge(base, path, roles, columns, run) if options.judged else []
    metrics["evaluation"] = [asdict(e) for e in judged]
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1))
    (out / "README.md").write_text(card.write(metrics, model))
    return metrics


@dataclass(frozen=True, slots=True)
class _Run:
    """What all parts of a distillation are told: whether to stop, and who hears of them."""

    options: Options
    stopped: Callable[[], bool]
    stages: Stages
    say: Callable[[str], object]


def _text(base: Base, roles: Roles | None, path: Path, run: _Run) -> Text:
    options = run.options
    if path.exists():
        return read_text(path)
    started = time.monotonic()
    text = write_text(
        base,
        roles,
        tokens=options.tokens,
        length=min(options.conversation, options.length),
        rows=writing_rows(base, options),
        seed=options.seed,
        stopped=run.stopped,
        stages=run.stages,
    )
    seconds = time.monotonic() - started
    text = joined(text, options.length)
    text.figures["seconds"] = round(seconds, 1)
    save_text(path, text)
    mx.clear_cache()
    run.say(f"wrote {text.figures}, {text.figures['tokens_written'] / seconds:.0f} tokens/s")
    return text


def _fresh(base: Base, text: Text, options: Options) -> DistilledHead:
    columns = min(options.draft_vocab, base.target.vocabulary)
    return new_head(base, mx.array(frequent(text, base.target.vocabulary, columns)), options.seed)


def _trainable(head: DistilledHead, base: Base, options: Options) -> DistilledHead:
    head.set_dtype(mx.float32)
    if options.width is not None:
        head = widened(head, base.target.shared, options.width, options.seed)
    mx.eval(head.parameters())
    return head


def _file(begin: str) -> Path:
    path = Path(begin)
    path = path / "head.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise InvalidRequest(f"there is no head to begin with at {path}")
    return path


def _before(begin: Path) -> list[dict[str, Any]]:
    """The runs that a head comes from, the last one first, as far as it is told beside it."""
    path = begin.with_name("metrics.json")
    if not path.exists():
        return []
    told = json.loads(path.read_text())
    run = {"text": told["text"], "training": told["training"]}
    run["options"] = {name: told["options"][name] for name in ("rows", "length", "seed")}
    return [run, *told.get("before", [])]


def _train(
    base: Base, head: DistilledHead, text: Text, out: Path, run: _Run, *, progress: bool
) -> dict[str, Any]:
    options = run.options
    features = Features(base, text.tokens, text.sampled, options.rows, cache_budget(options))
    if not len(features):
        raise InvalidRequest(
            f"{len(text.tokens)} rows of text are left, and a step takes {options.rows}; "
            "ask for more tokens or fewer rows"
        )
    late = LATE if options.begin is None else SOON
    plan = Plan(options.depth, options.minutes, options.steps, options.seed, late, options.aim)
    try:
        return train(
            base,
            head,
            features,
            plan,
            out / "checkpoint.safetensors",
            stopped=run.stopped,
            progress=progress,
            say=run.say,
        )
    except Interrupted:
        raise KeyboardInterrupt from None


def _judge(
    base: Base, path: Path, roles: Roles | None, columns: int, run: _Run
) -> list[Evaluation]:
    """Judge the head as it was saved."""
    options = run.options
    head = load_head(base, path)
    prompts = [
        p
        for domain in DOMAINS
        for p in [p for p in HELD_OUT if p.domain == domain][: options.judged]
    ]
    sizes = sorted({min(columns, n) for n in (4096, 8192, 16384, columns)})
    found = []
    for temperature in options.temperatures:
        answers = answer(
            base,
            roles,
            head.vocabulary,
            temperature,
            prompts=prompts,
            stopped=run.stopped,
            stages=run.stages,
        )
        with run.stages(len(sizes), f"judging at temperature {temperature}", "size") as tick:
            for size in sizes:
                found.append(evaluate(base, head, answers, size))
                tick(1)
        for seen in found[-len(sizes) :]:
            run.say(f"T {temperature}, {seen.columns} ids: {seen.overall}")
    return found


def load_head(base: Base, path: Path) -> DistilledHead:
    """A saved head, in its model's own type."""
    return load_distilled(
        path,
        shared=base.target.shared,
        base_norm=base.norm,
        hidden=base.hidden,
        vocabulary=base.target.vocabulary,
        layers=base.layers,
        dtype=base.dtype,
    )


def cache_budget(options: Options) -> int:
    """Bytes for the base's states: half of what the device has, or what was asked for."""
    if options.cache_gb is not None:
        return int(options.cache_gb * GIB)
    return _memory() // 2


def writing_rows(base: Base, options: Options) -> int:
    """Conversations written at once: what was asked for, or what there is room for."""
    if options.writing_rows is not None:
        return options.writing_rows
    caches = make_prompt_cache(base.target.model)
    mx.eval(base.target.forward(mx.array([[0]]), caches))
    states: Any = tree_flatten([cache.state for cache in caches])
    # What a cache holds after one token is what each token takes, or all that it ever takes.
    token = sum(a.nbytes for _, a in states if isinstance(a, mx.array))
    room = _memory() // 4 // max(1, token * min(options.conversation, options.length))
    return max(1, min(MOST_WRITING_ROWS, room))


def _memory() -> int:
    return budget() or LEAST_MEMORY


def _limit_memory() -> None:
    """Freed buffers of past shapes must not crowd out the kept states."""
    mx.set_cache_limit(min(16 * GIB, _memory() // 8))


def _save(path: Path, head: DistilledHead, base: Base) -> None:
    draft = path.with_name(f"writing-{path.name}")
    save_distilled(draft, head, base.norm)
    os.replace(draft, path)


def _refuse_other(path: Path, settings: dict[str, Any]) -> None:
    """Keep two different runs out of one folder, whose settings are in this file."""
    if not path.exists():
        return
    known = json.loads(path.read_text())
    other = {k: known.get(k) for k, v in settings.items() if known.get(k) != v}
    if other:
        raise InvalidRequest(
            f"{path.parent} holds a run with {', '.join(f'{k} {v}' for k, v in other.items())}; "
            "repeat those settings to go on, or name another folder"
        )


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, and obeyed between steps; a second one ends at once."""
    asked: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)

    def note(number: int, _: Any) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, note) for number in signals}
    except ValueError:  # not on the main thread, where signals do not arrive
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    from mtplx_kernel.training.command import main

    sys.exit(main())
