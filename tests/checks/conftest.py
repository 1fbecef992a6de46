"""Engines on tiny models to check: a plain one, one with a head, and one with two tokens alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import pytest

import mtplx_kernel as mk
from mtplx_kernel.decoding.drafting import Drafts
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig
from mtplx_kernel.heads.distilled_file import save_distilled
from mtplx_kernel.models.load import load
from tests.tiny import COMMON, VOCABULARY, write

TWINS = (40, 200)
CONTEXT = 2000
HEAD = HeadConfig(
    hidden=COMMON["hidden_size"],
    vocabulary=VOCABULARY,
    layers=COMMON["num_hidden_layers"],
    taps=(1, 2, "final"),
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=96,
)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with room for the prompts of the checks: a token is a byte."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    return write("llama", folder, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def plain_engine(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder)) as loaded:
        yield loaded


@pytest.fixture
def engine(plain_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The plain engine, drafting in every cycle: what it said last, which is often wrong."""
    draft_always(plain_engine, monkeypatch)
    return plain_engine


@pytest.fixture(scope="session")
def headed(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with a random head: it drafts wherever a depth is asked for, and can fork."""
    folder = tmp_path_factory.mktemp("models") / "headed"
    shutil.copytree(tiny_folder, folder)
    target = load(folder, "tiny", "none").target
    assert target.final_norm is not None
    mx.random.seed(4)
    head = DistilledHead(HEAD, target.shared, mx.arange(VOCABULARY))
    save_distilled(folder / "head.safetensors", head, target.final_norm)
    with mk.load(str(folder)) as loaded:
        yield loaded


@pytest.fixture
def twins(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[float], Engine]]:
    """Engines whose second twin's logit is the first's times a factor; all others are 0."""
    loaded: list[Engine] = []

    def load_twins(factor: float) -> Engine:
        folder = write("llama", tmp_path / "twins", max_position_embeddings=CONTEXT)
        file = str(folder / "model.safetensors")
        weights = dict(mx.load(file))
        row = weights["lm_head.weight"][TWINS[0]]
        head = mx.zeros_like(weights["lm_head.weight"])
        head[TWINS[0]], head[TWINS[1]] = row, row * factor
        weights["lm_head.weight"] = head
        mx.save_safetensors(file, weights, {"format": "mlx"})
        loaded.append(mk.load(str(folder)))
        draft_always(loaded[-1], monkeypatch)
        return loaded[-1]

    yield load_twins
    for each in loaded:
        each.close()


def draft_always(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = engine._owner.runner
    assert runner is not None

    def propose(rows: Sequence[Row], depths: Sequence[int]) -> Drafts:
        return Drafts.of([[row.ids[-1]] * depth for row, depth in zip(rows, depths, strict=True)])

    monkeypatch.setattr(runner.step.drafter, "propose", propose)
