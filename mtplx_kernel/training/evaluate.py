"""How many of a head's guesses a model accepts, on prompts that no training text holds.

The model answers first. Then the head's drafts from every position of the answers are made at once,
and each answer is walked cycle by cycle, as decoding would: propose, keep the run of right guesses
and the model's own next token, start anew after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.models.progress import Stages, untold
from mtplx_kernel.training.base import Base
from mtplx_kernel.training.heldout import HELD_OUT, HeldOut
from mtplx_kernel.training.loops import loop_starts
from mtplx_kernel.training.roles import USER, Roles, encode
from mtplx_kernel.training.rollout import Start, roll, step_noise
from mtplx_kernel.training.unroll import unroll

DEPTH = 4
LONGEST_ANSWER = 160
ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Answers:
    """What the model wrote to some prompts.

    Attributes
    ----------
    tokens
        int32, shape (rows, length).
    starts, stops
        For each row, where its answer begins, and the end of its last token.
    domains
        Of each row.
    looping
        How many answers were left out because they repeat themselves.
    temperature
        That they were sampled at.
    noise
        The noise that sampled them, shape (rows, length, columns); None at temperature 0.
    """

    tokens: mx.array
    starts: list[int]
    stops: list[int]
    domains: list[str]
    looping: int
    temperature: float
    noise: mx.array | None


@dataclass(frozen=True, slots=True)
class Scores:
    """Acceptance of drafts.

    Attributes
    ----------
    acceptance
        For each depth from 1, the share of drafts that were right, of those whose chain was right
        up to them.
    tokens_a_cycle
        For each number of drafts a cycle from 1, how many tokens a cycle gives.
    """

    acceptance: tuple[float, ...]
    tokens_a_cycle: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A head's scores at one temperature and size of the draft vocabulary.

    Attributes
    ----------
    overall
        Means over the domains.
    """

    temperature: float
    columns: int
    answers: int
    looping: int
    overall: Scores
    domains: dict[str, Scores]


def answer(
    base: Base,
    roles: Roles | None,
    vocabulary: mx.array,
    temperature: float,
    *,
    prompts: Sequence[HeldOut] = HELD_OUT,
    longest: int = LONGEST_ANSWER,
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    stages: Stages = untold,
) -> Answers:
    """Let the model answer prompts.

    Parameters
    ----------
    base, roles
        The model and its conversations' form.
    vocabulary
        Columns whose noise is kept.
    temperature
        0 takes the likeliest token.
    prompts, longest
        What to answer, in how many tokens at most.
    seed
        Of the noise.
    stopped
        Asked between steps; if so, KeyboardInterrupt is raised.
    stages
        Told of the steps.
    """
    rows = [Start(_ids(base, roles, p.text), True, temperature) for p in prompts]
    length = max(len(row.ids) for row in rows) + longest
    key = mx.random.key(seed)
    with stages(length - 1, f"judging at temperature {temperature}", "step") as done:

        def tick(_: int) -> None:
            done(1)
            if stopped():
                raise KeyboardInterrupt

        rolled = roll(base.target, rows, length, roles=roles, key=key, tick=tick)
    tokens = np.array(rolled.tokens)
    ends = np.isin(tokens, list(roles.ends if roles else base.end_ids))
    starts = [len(row.ids) for row in rows]
    stops = [_stop(ends[n], start, start + longest) for n, start in enumerate(starts)]
    kept = [
        n
        for n, (start, stop) in enumerate(zip(starts, stops, strict=True))
        if stop - start > 1 and loop_starts(tokens[n : n + 1, start:stop])[0] == stop - start
    ]
    return Answers(
        mx.array(tokens[kept]),
        [starts[n] for n in kept],
        [stops[n] for n in kept],
        [prompts[n].domain for n in kept],
        len(rows) - len(kept),
        temperature,
        _noise(key, len(rows), length, base.target.vocabulary, vocabulary, kept)
        if temperature
        else None,
    )


def evaluate(
    base: Base, head: DistilledHead, answers: Answers, columns: int, depth: int = DEPTH
) -> Evaluation:
    """Score a head on answers.

    Parameters
    ----------
    base
        The model, tapped for the head.
    head
        The head, in the model's type.
    answers
        What the model wrote.
    columns
        Size of the draft vocabulary.
    depth
        Most drafts a cycle.
    """
    right = matches(base, head, answers, columns, depth)
    names = sorted(set(answers.domains))
    scores = {
        name: score(
            [
                (right[n], answers.starts[n], answers.stops[n])
                for n, domain in enumerate(answers.domains)
                if domain == name
            ],
            depth,
        )
        for name in names
    }

    def mean(field: str) -> tuple[float, ...]:
        table = np.array([getattr(s, field) for s in scores.values()])
        return tuple(float(x) for x in table.mean(axis=0)) if len(table) else ()

    overall = Scores(mean("acceptance"), mean("tokens_a_cycle"))
    return Evaluation(
        answers.temperature, columns, len(answers.starts), answers.looping, overall, scores
    )


def matches(base: Base, head: DistilledHead, answers: Answers, columns: int, depth: int) -> Any:
    """Whether the draft at each depth of the chain from each pair is the text's own token.

    Returns
    -------
    numpy.ndarray
        bool, shape (rows, pairs, depth): [r, i, d - 1] is about token i + 1 + d of row r.
    """
    count, parts = len(answers.starts), []
    for first in range(0, count, ROWS_AT_ONCE):
        rows = slice(first, min(first + ROWS_AT_ONCE, count))
        noise = None if answers.noise is None else answers.noise[rows, :, :columns]
        tokens = answers.tokens[rows]
        drafts = _drafts(base, head, tokens, noise, answers.temperature, columns, depth)
        padded = np.pad(np.array(tokens), ((0, 0), (0, depth)), constant_values=-1)
        pairs = drafts.shape[1]
        truth = np.stack([padded[:, d + 1 : d + 1 + pairs] for d in range(1, depth + 1)], axis=-1)
        parts.append(drafts == truth)
    return np.concatenate(parts) if parts else np.zeros((0, 0, depth), bool)


def _drafts(
    base: Base,
    head: DistilledHead,
    tokens: mx.array,
    noise: mx.array | None,
    temperature: float,
    columns: int,
    depth: int,
) -> Any:
    """Drafted ids of all chains, a NumPy array of shape (rows, pairs, depth)."""
    features = base.target.features(base.target.forward(tokens, None))[:, :-1]
    pairs = features.shape[1]
    embed = base.target.shared.embed
    drafted: list[mx.array] = []

    def draft(states: mx.array) -> mx.array:
        logits = head.logits(states, columns)
        if noise is not None:
            d = len(drafted) + 1
            # The token after position n is chosen by noise n; past the end none is needed.
            shifted = mx.pad(noise[:, d : d + pairs], [(0, 0), (0, d - 1), (0, 0)])
            logits = logits + temperature * shifted
        drafted.append(head.vocabulary[mx.argmax(logits, axis=-1)])
        mx.eval(drafted[-1])
        return drafted[-1]

    def embedded(d: int, states: mx.array | None) -> mx.array:
        return embed(tokens[:, 1:] if states is None else draft(states))

    states = unroll(head, features, embedded, depth)
    draft(states[-1])
    return np.array(mx.stack(drafted, axis=-1))


def score(texts: Sequence[tuple[Any, int, int]], depth: int) -> Scores:
    """Walk texts cycle by cycle.

    Parameters
    ----------
    texts
        For each, its part of `matches`, shape (pairs, depth), where its answer begins, and the end
        of its last token.
    depth
        Most drafts a cycle.
    """
    tried, right = np.zeros(depth), np.zeros(depth)
    rates = []
    for drafts in range(1, depth + 1):
        tokens = cycles = 0
        for match, start, stop in texts:
            known = start  # the last known token, which the model itself gave
            while known + 1 < stop:
                room = min(drafts, stop - known - 1)
                run = _run(match[known - 1], room)
                if drafts == depth:
                    tried[: min(run + 1, room)] += 1
                    right[:run] += 1
                gained = min(run + 1, stop - known - 1)
                tokens, cycles, known = tokens + gained, cycles + 1, known + gained
        rates.append(tokens / cycles if cycles else 0.0)
    acceptance = tuple(float(r / t) if t else 0.0 for r, t in zip(right, tried, strict=True))
    return Scores(acceptance, tuple(rates))


def _run(match: Any, room: int) -> int:
    wrong = np.flatnonzero(~match[:room])
    return int(wrong[0]) if len(wrong) else room


def _stop(ends: Any, start: int, limit: int) -> int:
    found = np.flatnonzero(ends[start:limit])
    return start + int(found[0]) + 1 if len(found) else min(limit, len(ends))


def _ids(base: Base, roles: Roles | None, text: str) -> list[int]:
    if roles is None:
        return [int(i) for i in base.tokenizer.encode(text)]
    rendered = base.tokenizer.apply_chat_template(
        [{"role": "user", "content": USER}], tokenize=False, add_generation_prompt=True
    )
    return encode(base.tokenizer, rendered.replace(USER, text))


def _noise(
    key: mx.array, rows: int, length: int, ids: int, vocabulary: mx.array, kept: list[int]
) -> mx.array:
    keys, steps = mx.random.split(key, length), []
    for n in range(length):
        steps.append(step_noise(keys[n], (rows, ids))[:, vocabulary][mx.array(kept)])
        mx.eval(steps[-1])
    return mx.stack(steps, axis=1)
