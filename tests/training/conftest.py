"""A tiny random model as training sees it, and a small head for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.models.target import Target
from mtplx_kernel.training.base import Base, make_base, new_head
from mtplx_kernel.training.roles import Roles, find_roles
from tests import tiny

COLUMNS = 200


class TinyTokenizer:
    """The tiny models' tokenizer with what training asks of one."""

    chat_template = tiny.CHAT_TEMPLATE
    all_special_ids = (256, 257)

    def __init__(self) -> None:
        self._inner = tiny.tokenizer()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens).ids)

    def apply_chat_template(
        self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        text = "".join(f"<|start|>{m['role']}\n{m['content']}<|end|>\n" for m in messages)
        return text + ("<|start|>assistant\n" if add_generation_prompt else "")


@pytest.fixture(scope="session")
def base() -> Base:
    target = Target(tiny.build("llama"))
    made = make_base(Path("tiny"), target, TinyTokenizer(), frozenset({tiny.END_ID}))
    target.tap((1, 3, "final"))
    return made


@pytest.fixture
def head(base: Base) -> DistilledHead:
    made = new_head(base, mx.arange(COLUMNS, dtype=mx.int32), seed=1)
    shaken: list[tuple[str, Any]] = [
        (name, a + 0.1 * mx.random.normal(a.shape, key=mx.random.key(n)))
        for n, (name, a) in enumerate(tree_flatten(made.parameters()))
    ]
    made.load_weights(shaken)
    return made


@pytest.fixture(scope="session")
def roles(base: Base) -> Roles:
    found = find_roles(base.tokenizer, base.end_ids)
    assert found is not None
    return found
