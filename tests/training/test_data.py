"""Where conversations start, and that no training prompt is one that heads are judged on."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy as np
import pytest

from benchmarks.prompts import PROMPTS
from mtplx_kernel.training.base import Base
from mtplx_kernel.training.data import (
    BLANK,
    fill,
    holds_any,
    make_starts,
    overlaps,
    passage,
    sources,
)
from mtplx_kernel.training.heldout import DOMAINS, HELD_OUT, HeldOut
from mtplx_kernel.training.material import OPENINGS, PLAIN, SYSTEMS, TEMPLATES
from mtplx_kernel.training.roles import Roles
from mtplx_kernel.training.words import WORDS


@pytest.mark.parametrize("prompt", HELD_OUT, ids=lambda p: p.name)
def test_no_held_out_prompt_shares_eight_words_with_the_material(prompt: HeldOut) -> None:
    assert not overlaps(prompt.text, sources())
    assert not overlaps(prompt.text, [p.text for p in PROMPTS])


def test_an_overlap_is_seen() -> None:
    text = "The old dog sleeps by the stove, and dreams of rabbits!"
    assert overlaps(f"Please translate. {text}", sources())
    assert not overlaps("The old dog sleeps by the stove", sources())


def test_held_out_prompts_are_diverse() -> None:
    domains = Counter(p.domain for p in HELD_OUT)
    assert set(domains) == set(DOMAINS)
    assert min(domains.values()) >= 8
    assert len({p.name for p in HELD_OUT}) == len({p.text for p in HELD_OUT}) == len(HELD_OUT)


def test_material_is_large_and_its_blanks_are_known() -> None:
    assert len(set(TEMPLATES)) + len(set(OPENINGS)) >= 200
    texts = (*TEMPLATES, *OPENINGS, *PLAIN, *SYSTEMS, *WORDS["fact_sentence"])
    blanks = {name for text in texts for name in BLANK.findall(text)}
    assert blanks - {"passage"} <= set(WORDS)
    assert all(len(words) >= 7 for words in WORDS.values())


def test_filling_leaves_no_blank_and_keeps_code_as_it_is() -> None:
    rng = random.Random(0)
    for template in TEMPLATES:
        assert "{passage}" not in fill(template, rng)
    code = {fill("{snippet}", random.Random(n)) for n in range(60)}
    assert code == set(WORDS["snippet"])
    assert not re.search(r"\{\w+\}", passage(rng))


def test_starts(base: Base, roles: Roles) -> None:
    rng = random.Random(4)
    starts = make_starts(base.tokenizer, roles, 300, 500, rng)
    assert max(len(s.ids) for s in starts) <= 300
    answering = [s for s in starts if s.answering]
    assert 0.3 < len(answering) / 300 < 0.6
    end = list(roles.to_answer.ids)
    assert all(s.ids[-len(end) :] == end for s in answering)
    assert not any(s.ids[-len(end) :] == end for s in starts if not s.answering)
    assert {s.temperature for s in starts} == {0.0, 0.5, 0.8, 1.0}
    assert make_starts(base.tokenizer, roles, 300, 500, random.Random(4)) == starts


def test_starts_of_plain_texts(base: Base) -> None:
    starts = make_starts(base.tokenizer, None, 50, 200, random.Random(1))
    assert all(s.answering and s.ids for s in starts)


def test_rows_that_hold_a_text() -> None:
    rows = np.array([[1, 2, 3, 4], [4, 3, 2, 1], [2, 3, 9, 9]], np.int32)
    assert holds_any(rows, [[2, 3]]).tolist() == [True, False, True]
    assert holds_any(rows, [[2, 1], [9, 9, 9]]).tolist() == [False, True, False]
    assert holds_any(rows, [[1, 2, 3, 4, 5]]).tolist() == [False] * 3
