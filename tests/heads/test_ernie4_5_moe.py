"""The head of ERNIE 4.5 against its formula: no norm of its own, tied output head."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.agreement import assert_follows
from tests.heads.oracle import ernie4_5_moe
from tests.heads.published import open_head


def test_ernie4_5_moe_as_published(tmp_path: Path) -> None:
    published = ernie4_5_moe.published()
    _, head = open_head(published.write(tmp_path))
    embedding = published.base["model.embed_tokens.weight"].astype(np.float64)
    t = {n: a.astype(np.float64) for n, a in published.head.items()}
    assert_follows(head, embedding, ernie4_5_moe.states(t), lambda y: y @ embedding.T)
