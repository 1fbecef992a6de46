"""The heads of Ling 2.5 and Ling 3 against the MTP model of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.heads.fixtures.harness import assert_ragged, assert_reference, expected, load, run

LING_2, LING_3 = "bailing_hybrid", "bailing_hybrid_v3"


@pytest.mark.parametrize("kind", [LING_2, LING_3])
def test_as_published(tmp_path: Path, kind: str) -> None:
    _, head = load(kind, tmp_path)
    assert (head.family, head.taps) == ("bailing_hybrid", ("final",))
    assert (head.embed, head.output) == (None, None)
    assert_reference(head, kind, expected(kind))


def test_ling_3_gates_its_attention(tmp_path: Path) -> None:
    _, head = load(LING_3, tmp_path)
    gate = head.layers[0].attention.g_proj
    gate.weight = gate.weight * 0
    assert np.abs(run(head, LING_3)[0] - expected(LING_3)[0]).max() > 0.01


@pytest.mark.parametrize("kind", [LING_2, LING_3])
def test_rows_of_unlike_lengths(tmp_path: Path, kind: str) -> None:
    assert_ragged(load(kind, tmp_path)[1], kind)
