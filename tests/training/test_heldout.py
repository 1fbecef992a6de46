"""The prompts that heads are judged on."""

from __future__ import annotations

from collections import Counter

from mtplx_kernel.training.heldout import DOMAINS, HELD_OUT


def test_nine_prompts_a_domain_under_names_of_their_own() -> None:
    assert Counter(p.domain for p in HELD_OUT) == dict.fromkeys(DOMAINS, 9)
    assert len({p.name for p in HELD_OUT}) == len(HELD_OUT)


def test_no_blank_is_left_open() -> None:
    assert [p.name for p in HELD_OUT if "{_" in p.text] == []
    jar = next(p for p in HELD_OUT if p.name == "rewriting-jar")
    assert jar.text.endswith("        return w")
