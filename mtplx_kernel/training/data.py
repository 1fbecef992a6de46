"""How conversations begin: whole prompts, openings that the model ends, or nothing at all."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

from mtplx_kernel.training.material import OPENINGS, PLAIN, SYSTEMS, TEMPLATES
from mtplx_kernel.training.roles import SYSTEM, Roles, encode
from mtplx_kernel.training.rollout import Start
from mtplx_kernel.training.words import WORDS

TEMPERATURES = (0.0, 0.0, 0.5, 0.8, 1.0)
WHOLE, OPENED = 0.6, 0.2
"""Shares of conversations that begin with a whole prompt and with an opening; the rest is free."""
WITH_SYSTEM = 0.4
LONGEST_START = 0.6
"""Starts take at most this share of a row: the rest is for the answer."""
RUN = 8
BLANK = re.compile(r"\{(\w+)\}")


def fill(template: str, rng: random.Random) -> str:
    """A template with words in its blanks."""

    def word(blank: re.Match[str]) -> str:
        name = blank.group(1)
        return passage(rng) if name == "passage" else rng.choice(WORDS[name])

    return BLANK.sub(word, template)


def passage(rng: random.Random) -> str:
    """A few sentences of news that were never true."""
    sentences = rng.sample(WORDS["fact_sentence"], rng.randint(2, 5))
    filled = (fill(sentence, rng) for sentence in sentences)
    return " ".join(text[0].upper() + text[1:] for text in filled)


def make_starts(
    tokenizer: Any, roles: Roles | None, count: int, length: int, rng: random.Random
) -> list[Start]:
    """Starts of conversations, or of plain texts for a model without a chat template.

    Parameters
    ----------
    tokenizer
        Of the model.
    roles
        Its conversations' form; None for plain texts.
    count
        How many.
    length
        Tokens of a row.
    rng
        Source of the choices.
    """
    most = int(LONGEST_START * length)
    starts = [_start(tokenizer, roles, rng) for _ in range(count)]
    return [s if len(s.ids) <= most else _start_free(tokenizer, roles, rng) for s in starts]


def _start(tokenizer: Any, roles: Roles | None, rng: random.Random) -> Start:
    if roles is None:
        return _plain(tokenizer, fill(rng.choice(PLAIN), rng), rng)
    kind = rng.random()
    if kind >= WHOLE + OPENED:
        return _start_free(tokenizer, roles, rng)
    whole = kind < WHOLE
    text = fill(rng.choice(TEMPLATES if whole else OPENINGS), rng)
    ids = encode(tokenizer, _opening(roles, rng) + text)
    if whole:
        ids += roles.to_answer.ids
    return Start(ids, whole, rng.choice(TEMPERATURES))


def _start_free(tokenizer: Any, roles: Roles | None, rng: random.Random) -> Start:
    if roles is None:
        return _plain(tokenizer, "The", rng)
    return Start(encode(tokenizer, _opening(roles, rng)), False, rng.choice(TEMPERATURES))


def _plain(tokenizer: Any, text: str, rng: random.Random) -> Start:
    ids = [int(i) for i in tokenizer.encode(text)]
    return Start(ids, True, rng.choice(TEMPERATURES[2:]))


def _opening(roles: Roles, rng: random.Random) -> str:
    if roles.system is None or rng.random() >= WITH_SYSTEM:
        return roles.opening
    return roles.system.replace(SYSTEM, fill(rng.choice(SYSTEMS), rng))


def overlaps(prompt: str, material: Iterable[str]) -> bool:
    """Whether a prompt shares eight words in a row with any of the texts."""
    runs = _runs(prompt)
    return any(runs & _runs(text) for text in material)


def sources() -> tuple[str, ...]:
    """All texts that prompts are made of."""
    return (
        *TEMPLATES,
        *OPENINGS,
        *PLAIN,
        *SYSTEMS,
        *(w for words in WORDS.values() for w in words),
    )


def holds_any(rows: Any, texts: Sequence[Sequence[int]]) -> Any:
    """Which rows hold one of the id sequences, as a NumPy array of shape (rows,)."""
    import numpy as np

    found = np.zeros(len(rows), bool)
    for text in texts:
        wanted = np.asarray(text, rows.dtype)
        places = np.ones((len(rows), max(0, rows.shape[1] - len(wanted) + 1)), bool)
        for n, token in enumerate(wanted):
            places &= rows[:, n : n + places.shape[1]] == token
            if not places.any():
                break
        found |= places.any(axis=1)
    return found


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[n : n + RUN]) for n in range(len(words) - RUN + 1)}
