"""The head of Ling 2 and Ring 2 against its formula."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from tests.heads.fixtures.bailing import Reference
from tests.heads.fixtures.checkpoints import tensors
from tests.heads.fixtures.harness import assert_ragged, assert_reference, load

KIND = "bailing_moe"
GATE = "model.layers.2.mlp.gate"


def test_as_published(tmp_path: Path) -> None:
    _, head = load(KIND, tmp_path)
    assert (head.family, head.taps) == (KIND, ("final",))
    assert (head.embed, head.output) == (None, None)
    assert head.layers[0].mlp.gate.expert_bias.dtype == mx.float32
    assert_reference(head, KIND, Reference().run())


def test_the_bias_of_the_gate_has_two_names(tmp_path: Path) -> None:
    bias = tensors(KIND)[f"{GATE}.expert_bias"]
    renamed = {f"{GATE}.expert_bias": None, f"{GATE}.e_score_correction_bias": bias}
    _, head = load(KIND, tmp_path, renamed)
    assert_reference(head, KIND, Reference().run())


def test_rows_of_unlike_lengths(tmp_path: Path) -> None:
    assert_ragged(load(KIND, tmp_path)[1], KIND)
