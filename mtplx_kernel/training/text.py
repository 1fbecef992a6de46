"""The training text: the model's own conversations, made once and kept in a file."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mtplx_kernel.models.progress import Stages, untold
from mtplx_kernel.training.base import Base
from mtplx_kernel.training.data import holds_any, make_starts
from mtplx_kernel.training.heldout import HELD_OUT
from mtplx_kernel.training.loops import loop_starts
from mtplx_kernel.training.roles import Roles, encode
from mtplx_kernel.training.rollout import roll

LEAST_ANSWER = 0.3
"""Share of a row that must be answers for it to be worth its place."""


@dataclass(frozen=True, slots=True)
class Text:
    """Rows that were kept.

    Attributes
    ----------
    tokens
        int32 NumPy array of shape (rows, length).
    sampled
        uint8, same shape: 1 for an answer's own tokens.
    figures
        Counts of what was made and dropped.
    """

    tokens: Any
    sampled: Any
    figures: dict[str, float]


def write_text(
    base: Base,
    roles: Roles | None,
    *,
    tokens: int,
    length: int,
    rows: int,
    seed: int,
    stopped: Callable[[], bool] = lambda: False,
    stages: Stages = untold,
) -> Text:
    """Let the model write conversations.

    Parameters
    ----------
    base, roles
        The model, and its conversations' form.
    tokens
        How many to write, before rows are dropped.
    length
        Of a row.
    rows
        Written at once, at most.
    seed
        Of everything random.
    stopped
        Asked between steps; if so, KeyboardInterrupt is raised.
    stages
        Told of the writing.
    """
    total = max(1, -(-tokens // length))
    rng, keys = random.Random(seed), mx.random.key(seed)
    parts: list[tuple[Any, Any]] = []
    with stages(total * length, "writing", "tok") as written_more:
        for first in range(0, total, rows):
            count = min(rows, total - first)
            starts = make_starts(base.tokenizer, roles, count, length, rng)
            keys, key = mx.random.split(keys)

            def tick(_: int, count: int = count) -> None:
                written_more(count)
                if stopped():
                    raise KeyboardInterrupt

            rolled = roll(base.target, starts, length, roles=roles, key=key, tick=tick)
            parts.append((np.array(rolled.tokens), np.array(rolled.sampled)))
            del rolled
    written = np.concatenate([t for t, _ in parts])
    sampled = np.concatenate([s for _, s in parts])
    # Two seeds in one: the order of writing says what temperature and kind a row is.
    order = np.random.default_rng([seed, 1]).permutation(len(written))
    return clean(base, written[order], sampled[order])


def clean(base: Base, tokens: Any, sampled: Any) -> Text:
    """Cut off what loops, and drop rows that hold a prompt that heads are judged on.

    Of a row that loops, what comes before counts as answers; it is kept if that is enough.
    """
    length = tokens.shape[1]
    starts = loop_starts(tokens)
    sampled = np.where(np.arange(length) < starts[:, None], sampled, 0).astype(np.uint8)
    judged = holds_any(tokens, [encode(base.tokenizer, p.text) for p in HELD_OUT])
    kept = ~judged & (sampled.sum(1) >= LEAST_ANSWER * length)
    figures = {
        "rows_written": len(tokens),
        "tokens_written": int(tokens.size),
        "share_looping": round(float((starts < length).mean()), 4),
        "rows_held_out": int(judged.sum()),
        "rows": int(kept.sum()),
        "tokens": int(tokens[kept].size),
        "answer_tokens": int(sampled[kept].sum()),
    }
    return Text(np.ascontiguousarray(tokens[kept]), np.ascontiguousarray(sampled[kept]), figures)


def joined(text: Text, length: int) -> Text:
    """Rows of another length: so many conversations, one behind the other, as fill it."""
    width = text.tokens.shape[1]
    each = length // width
    count = len(text.tokens) // each
    tokens, sampled = (
        array[: count * each].reshape(count, each * width) for array in (text.tokens, text.sampled)
    )
    return Text(tokens, sampled, text.figures)


def frequent(text: Text, vocabulary: int, columns: int) -> Any:
    """The ids most frequent in answers, int32 NumPy array of shape (columns,), ordered by that."""
    order = np.argsort(-_counts(text, vocabulary), kind="stable")[:columns]
    return order.astype(np.int32)


def covered(text: Text, vocabulary: int, ids: Any) -> float:
    """The share of answers' tokens that are among the ids."""
    counts = _counts(text, vocabulary)
    return float(counts[np.asarray(ids)].sum() / max(1, counts.sum()))


def _counts(text: Text, vocabulary: int) -> Any:
    return np.bincount(text.tokens[text.sampled == 1], minlength=vocabulary)[:vocabulary]


def save_text(path: Path, text: Text) -> None:
    """Write the text to a file, whole or not at all."""
    draft = path.with_name(f"writing-{path.name}")
    arrays = {"tokens": mx.array(text.tokens), "sampled": mx.array(text.sampled)}
    mx.save_safetensors(str(draft), arrays, {"figures": json.dumps(text.figures)})
    os.replace(draft, path)


def read_text(path: Path) -> Text:
    """Read back what `save_text` wrote."""
    loaded: Any = mx.load(str(path), return_metadata=True)
    arrays, metadata = loaded
    figures = json.loads(metadata["figures"])
    return Text(np.array(arrays["tokens"]), np.array(arrays["sampled"]), figures)
