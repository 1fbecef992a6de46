"""Every family's head drafts for its target: whatever it drafts, the ids are those of mode ar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.heads.checkpoint import load_native
from mtplx_kernel.heads.families import FAMILIES, classes_without_head
from mtplx_kernel.heads.native import NativeHead
from mtplx_kernel.models.target import Target
from tests.decoding.rows import as_ar, make_row, run
from tests.heads.fixtures import checkpoints, harness
from tests.heads.oracle import ernie4_5_moe, exaone_moe, mimo, mimo_v2_flash, qwen, step3p5
from tests.heads.published import Published

PUBLISHED: dict[str, Callable[[], Published]] = {
    "qwen3_next": qwen.next_one,
    "qwen3_5": qwen.dense,
    "qwen3_5_moe": lambda: qwen.mixture(in_one=True),
    "mimo": mimo.published,
    "mimo_v2_flash": mimo_v2_flash.published,
    "step3p5": step3p5.published,
    "ernie4_5_moe": ernie4_5_moe.published,
    "exaone_moe": exaone_moe.published,
}
KINDS = [*PUBLISHED, *checkpoints.CONFIGS]
PROMPTS = ((5, 6, 7, 8, 9, 40, 41), (30, 2), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5))
SAMPLERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "top_p": 0.95, "seed": 2},
    {"temperature": 0.7, "repetition_penalty": 1.3, "penalty_context": 6},
)


def opened(kind: str, folder: Path) -> tuple[Target, NativeHead]:
    """The tiny checkpoint of that kind as a user's load makes it, in float32."""
    if kind in PUBLISHED:
        PUBLISHED[kind]().write(folder)
    else:
        harness.write(kind, folder)
    model, config = load_model(folder, get_model_classes=classes_without_head)
    model.set_dtype(mx.float32)
    target = Target(model)
    norm = target.final_norm
    assert norm is not None
    head = load_native(
        folder, config, shared=target.shared, hidden=norm.size, vocabulary=target.vocabulary
    )
    assert head is not None
    head.set_dtype(mx.float32)
    target.tap(head.taps)
    return target, head


def rows() -> list[Row]:
    return [
        make_row(prompt, slot, max_tokens=12, ignore_eos=True, depth=2, **SAMPLERS[slot])
        for slot, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_mode_ar(tmp_path: Path, kind: str) -> None:
    target, head = opened(kind, tmp_path)
    count = len(PROMPTS)
    plain = [as_ar(row) for row in rows()]
    run(DecodeStep(target, SlotCaches(target.model, count), None), plain)
    drafter = HeadDrafter(head, SlotCaches(head, count), target.vocabulary)
    drafted = rows()
    widths: list[int] = []
    observe = drafter.observe

    def counting(row: Row, width: int, tokens: list[int]) -> None:
        widths.append(width)
        observe(row, width, tokens)

    drafter.observe = counting  # type: ignore[assignment,method-assign]
    run(DecodeStep(target, SlotCaches(target.model, count), drafter), drafted)
    assert sum(widths) >= 12, "it must have drafted"
    assert [row.draft_error for row in drafted] == [None] * count
    assert [row.ids for row in drafted] == [row.ids for row in plain]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_given_the_states_that_it_wants(tmp_path: Path, kind: str) -> None:
    """Before the target's final norm or after it."""
    target, head = opened(kind, tmp_path)
    final = target.forward(mx.array([[3, 1, 4, 1, 5]]), None)
    states = target.features(final)
    if head.taps == ("final",):
        assert mx.array_equal(states, final).item()
    else:
        assert not mx.allclose(states, final, atol=0.1).item()
        assert mx.allclose(target.inner.norm(states), final, atol=1e-5).item()


def test_every_family_is_tried() -> None:
    tried = {PUBLISHED[kind]().config["model_type"] for kind in PUBLISHED}
    tried |= {config["model_type"] for config in checkpoints.CONFIGS.values()}
    assert [f.name for f in FAMILIES if not f.model_types & tried] == []
