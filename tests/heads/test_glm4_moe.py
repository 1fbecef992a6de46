"""The head of GLM-4.5 to 4.7 against the MTP model of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.heads.fixtures.checkpoints import CONFIGS, tensors
from tests.heads.fixtures.harness import assert_ragged, assert_reference, expected, load, run

KIND = "glm4_moe"


def test_as_published(tmp_path: Path) -> None:
    _, head = load(KIND, tmp_path)
    assert (head.family, head.taps) == (KIND, ("final",))
    assert (head.embed, head.output) == (None, None)
    assert_reference(head, KIND, expected(KIND))


def test_rows_of_unlike_lengths(tmp_path: Path) -> None:
    assert_ragged(load(KIND, tmp_path)[1], KIND)


def test_the_norms_of_queries_and_keys_are_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, KIND, CONFIGS[KIND] | {"use_qk_norm": False})
    _, head = load(KIND, tmp_path)
    assert not [n for n in tensors(KIND) if "q_norm" in n]
    assert np.abs(run(head, KIND)[0] - expected(KIND)[0]).max() > 0.01
