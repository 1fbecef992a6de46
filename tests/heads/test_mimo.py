"""The heads of MiMo-7B and MiMo-V2-Flash against their formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.heads.agreement import assert_follows, parts
from tests.heads.oracle import mimo, mimo_v2_flash
from tests.heads.published import open_head

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("layers", [1, 2])
def test_mimo_as_published(tmp_path: Path, layers: int) -> None:
    published = mimo.published(layers)
    _, head = open_head(published.write(tmp_path))
    assert head.taps == (-1,)
    embedding, output = parts(published, EMBEDDING, OUTPUT)
    t = {n: a.astype(np.float64) for n, a in published.head.items()}
    assert_follows(head, embedding, mimo.states(t), lambda y: mimo.normed(t, y) @ output.T)


def test_mimo_v2_flash_as_published(tmp_path: Path) -> None:
    published = mimo_v2_flash.published()
    _, head = open_head(published.write(tmp_path))
    assert head.taps == ("final",)
    embedding, output = parts(published, EMBEDDING, OUTPUT)
    t = {n: a.astype(np.float64) for n, a in published.head.items()}
    assert_follows(head, embedding, mimo_v2_flash.states(t), lambda y: y @ output.T)
