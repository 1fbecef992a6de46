"""The training text: loops and held-out prompts stay out, and conversations fill rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.training import distill as distill_module
from mtplx_kernel.training.base import Base, load_base
from mtplx_kernel.training.distill import Options, distill
from mtplx_kernel.training.heldout import HELD_OUT
from mtplx_kernel.training.roles import encode
from mtplx_kernel.training.text import Text, clean, joined, read_text, save_text
from tests import tiny

LENGTH = 200
RUN = [250, 251, 252, 253, 254, 255, 249, 248]


def fresh(seed: int) -> Any:
    """A row that repeats nothing: eight tokens in a row are never the same twice."""
    return np.random.default_rng(seed).integers(0, 240, LENGTH).astype(np.int32)


def looping(seed: int, first: int) -> Any:
    """A row that says four times the same, for the second time at a place."""
    row = fresh(seed)
    for n in range(-1, 3):
        row[first + 8 * n : first + 8 * n + 8] = RUN
    return row


def test_loops_are_masked_from_their_start_and_rows_of_few_answers_dropped(base: Base) -> None:
    tokens = np.stack([fresh(1), looping(2, 120), looping(3, 59), looping(4, 60), fresh(5)])
    sampled = np.ones_like(tokens, dtype=np.uint8)
    sampled[4] = 0
    sampled[4, :59] = 1
    found = clean(base, tokens, sampled)
    # 60 of 200 answer tokens are enough, 59 are not.
    assert np.array_equal(found.tokens, tokens[[0, 1, 3]])
    assert [row.tolist() for row in found.sampled] == [
        [1] * 200,
        [1] * 120 + [0] * 80,
        [1] * 60 + [0] * 140,
    ]
    assert (found.tokens.dtype, found.sampled.dtype) == (np.int32, np.uint8)
    assert found.figures == {
        "rows_written": 5,
        "tokens_written": 1000,
        "share_looping": 0.6,
        "rows_held_out": 0,
        "rows": 3,
        "tokens": 600,
        "answer_tokens": 380,
    }


def test_what_comes_before_an_answer_does_not_count_as_one(base: Base) -> None:
    tokens = looping(6, 100)[None]
    sampled = np.ones_like(tokens, dtype=np.uint8)
    sampled[0, :30] = 0
    found = clean(base, tokens, sampled)
    assert found.sampled[0].tolist() == [0] * 30 + [1] * 70 + [0] * 100
    sampled[0, :41] = 0
    assert len(clean(base, tokens, sampled).tokens) == 0


def test_rows_with_a_prompt_that_heads_are_judged_on_are_dropped(base: Base) -> None:
    judged = min((encode(base.tokenizer, p.text) for p in HELD_OUT), key=len)
    assert len(judged) < LENGTH - 20
    tokens = np.stack([fresh(7), fresh(8)])
    tokens[1, 20 : 20 + len(judged)] = judged
    found = clean(base, tokens, np.ones_like(tokens, dtype=np.uint8))
    assert np.array_equal(found.tokens, tokens[:1])
    assert (found.figures["rows_held_out"], found.figures["rows"]) == (1, 1)


def test_conversations_fill_rows_in_order() -> None:
    tokens = np.arange(5 * 4, dtype=np.int32).reshape(5, 4)
    text = Text(tokens, (tokens % 2).astype(np.uint8), {"rows": 5})
    two = joined(text, 9)
    # Two conversations of four are as many as nine hold; the fifth is left over.
    assert two.tokens.tolist() == [list(range(8)), list(range(8, 16))]
    assert two.sampled.tolist() == [[0, 1] * 4] * 2
    assert two.figures == {"rows": 5}
    same = joined(text, 7)
    assert np.array_equal(same.tokens, tokens)
    assert np.array_equal(same.sampled, text.sampled)
    assert joined(text, 24).tokens.shape == (0, 24)


def test_text_comes_back_from_its_file(tmp_path: Path) -> None:
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
    text = Text(tokens, (tokens > 3).astype(np.uint8), {"rows": 2, "share_looping": 0.25})
    save_text(tmp_path / "data.safetensors", text)
    again = read_text(tmp_path / "data.safetensors")
    assert np.array_equal(again.tokens, text.tokens)
    assert np.array_equal(again.sampled, text.sampled)
    assert again.figures == text.figures
    assert [file.name for file in tmp_path.iterdir()] == ["data.safetensors"]


@pytest.mark.parametrize(("conversation", "written"), [(40, 40), (100, 80)])
def test_a_distillation_writes_conversations_and_trains_on_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conversation: int, written: int
) -> None:
    lengths, shapes = [], []

    def write(base: Base, roles: Any, *, length: int, **_: Any) -> Text:
        lengths.append(length)
        tokens = np.random.default_rng(0).integers(0, 256, (16, length)).astype(np.int32)
        return Text(tokens, np.ones_like(tokens, dtype=np.uint8), {"tokens_written": tokens.size})

    def train(base: Base, head: Any, features: Any, *_: Any, **__: Any) -> dict[str, Any]:
        shapes.append((len(features), features.batch(0).tokens.shape))
        return {"steps": 0, "seconds": 0.0}

    monkeypatch.setattr(distill_module, "write_text", write)
    monkeypatch.setattr(distill_module, "train", train)
    monkeypatch.setattr(distill_module.card, "write", lambda *_: "a card")
    model = tiny.write("llama", tmp_path / "model")
    options = Options(conversation=conversation, length=80, rows=4, draft_vocab=100, judged=0)
    distill(model, tmp_path / "out", options)
    assert lengths == [written]
    # 16 conversations are 16 rows of 80, or 8 of two halves: four make a batch.
    assert shapes == [(16 * written // 80 // 4, (4, 80))]
    kept = read_text(tmp_path / "out" / "data.safetensors")
    assert kept.tokens.shape == (16 * written // 80, 80)


@pytest.mark.parametrize("rows", [0, 5])
def test_too_little_text_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    tokens = np.ones((rows, 40), np.int32)
    text = Text(tokens, tokens.astype(np.uint8), {"tokens_written": 800})
    monkeypatch.setattr(distill_module, "write_text", lambda *_, **__: text)
    model = tiny.write("llama", tmp_path / "model")
    options = Options(conversation=40, length=80, rows=4, draft_vocab=100, judged=0)
    with pytest.raises(InvalidRequest) as caught:
        distill(model, tmp_path / "out", options)
    assert str(caught.value) == (
        f"{rows // 2} rows of text are left, and a step takes 4; ask for more tokens or fewer rows"
    )


def test_a_base_is_loaded_without_any_head(tmp_path: Path) -> None:
    folder = tiny.write("llama", tmp_path / "model")
    (folder / "head.safetensors").write_bytes(b"no head at all")
    base = load_base(folder)
    assert (base.layers, base.hidden) == (4, 64)
    states = base.target.forward(mx.array([[1, 2]]), None)
    assert base.target.features(states) is states
