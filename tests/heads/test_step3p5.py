"""The first head of Step 3.5 against its formula, with the config's lists long and short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.heads.agreement import assert_follows
from tests.heads.oracle import step3p5
from tests.heads.published import open_head

SHORT: dict[str, Any] = {
    "layer_types": step3p5.CONFIG["layer_types"][: step3p5.LAYERS],
    "rope_theta": step3p5.CONFIG["rope_theta"][: step3p5.LAYERS],
}


@pytest.mark.parametrize("inside", ["", "transformer."])
@pytest.mark.parametrize("changes", [{}, SHORT], ids=["long", "short"])
def test_step3p5_as_published(tmp_path: Path, inside: str, changes: dict[str, Any]) -> None:
    published = step3p5.published(inside=inside, **changes)
    _, head = open_head(published.write(tmp_path))
    assert head.taps == (-1,)
    t = step3p5.tensors(published.head)
    embedding = published.base["model.embed_tokens.weight"].astype(float)
    assert_follows(head, embedding, step3p5.states(t), step3p5.logits(t))
