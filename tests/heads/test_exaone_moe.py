"""The head of K-EXAONE against its formula: global as published, or with a window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.heads.agreement import assert_follows, parts
from tests.heads.oracle import exaone_moe
from tests.heads.published import open_head


@pytest.mark.parametrize("sliding", [False, True])
def test_exaone_moe_as_published(tmp_path: Path, sliding: bool) -> None:
    published = exaone_moe.published(**(exaone_moe.SLIDING if sliding else {}))
    _, head = open_head(published.write(tmp_path))
    embedding, output = parts(published, "model.embed_tokens.weight", "lm_head.weight")
    t = {n: a.astype(np.float64) for n, a in published.head.items()}
    assert_follows(head, embedding, exaone_moe.states(t, sliding), lambda y: y @ output.T)
