"""An engine with a head: what it says of it, the same ids, and a head that fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig, save_distilled
from mtplx_kernel.models.load import load
from tests.engine.conftest import PROBE
from tests.tiny import COMMON, VOCABULARY

CONFIG = HeadConfig(
    hidden=COMMON["hidden_size"],
    vocabulary=VOCABULARY,
    layers=COMMON["num_hidden_layers"],
    taps=(1, 2, "final"),
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=96,
)
DRAFTED = 200
"""Ids that the head drafts: less than there are."""


@pytest.fixture(scope="module")
def headed_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama with a random distilled head beside it."""
    folder = tmp_path_factory.mktemp("models") / "headed"
    shutil.copytree(tiny_folder, folder)
    target = load(folder, "tiny", "none").target
    mx.random.seed(4)
    head = DistilledHead(CONFIG, target.shared, mx.arange(DRAFTED))
    norm = target.final_norm
    assert norm is not None
    save_distilled(folder / "head.safetensors", head, norm)
    return folder


@pytest.fixture(scope="module")
def headed(headed_folder: Path) -> Iterator[Engine]:
    with mk.load(headed_folder) as engine:
        yield engine


def test_the_status_tells_of_the_head(headed: Engine, headed_folder: Path) -> None:
    status = headed.status()
    assert status["drafters"] == ["head", "lookup"]
    head = status["head"]
    assert head["name"] == "distilled"
    assert head["source"] == str(headed_folder / "head.safetensors")
    assert head["draft_vocabulary"] == DRAFTED
    # fuse 3*64*64, fc 2*64*64, q and o 64*64, k and v 32*64, MLP 3*96*64, norms (3 + 5)*64
    assert head["parameters"] == 5 * 4096 + 2 * 4096 + 2 * 2048 + 3 * 6144 + 8 * 64
    assert head["bytes"] == 4 * head["parameters"]
    assert set(head["ms"]) == {"first", "step"}


def test_its_memory_counts(headed: Engine, shared_engine: Engine) -> None:
    more = headed.status()["weights_bytes"] - shared_engine.status()["weights_bytes"]
    assert more == headed.status()["head"]["bytes"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 0.7, "seed": 4, "repetition_penalty": 1.3, "top_k": 40},
    ],
    ids=["greedy", "sampled", "penalised"],
)
@pytest.mark.parametrize("depth", [None, 1, 4])
def test_the_ids_are_those_of_mode_ar(
    headed: Engine, shared_engine: Engine, options: dict[str, Any], depth: int | None
) -> None:
    found = headed.generate(PROBE, max_tokens=40, mode="mtp", depth=depth, **options)
    plain = shared_engine.generate(PROBE, max_tokens=40, mode="ar", **options)
    assert found.token_ids == plain.token_ids
    assert found.stats.draft_error is None
    if depth:
        assert sum(found.stats.drafted_by_depth or ()) > 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_other_rules_run(headed: Engine, rule: str) -> None:
    settings: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "seed": 8, "depth": 2}
    one, other = (headed.generate(PROBE, acceptance=rule, **settings) for _ in range(2))
    assert one.token_ids == other.token_ids
    assert one.stats.draft_error is None
    greedy = headed.generate(PROBE, max_tokens=20, depth=2, acceptance=rule).token_ids
    assert greedy == headed.generate(PROBE, max_tokens=20, mode="ar").token_ids


def test_a_head_that_fails_leaves_the_request_in_mode_ar(
    headed_folder: Path, probe_ids: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with mk.load(headed_folder) as engine:

        def failing(*_: Any) -> mx.array:
            raise ZeroDivisionError("no luck")

        monkeypatch.setattr(DistilledHead, "recur", failing)
        failed = engine.generate(PROBE, max_tokens=12, depth=2)
        assert failed.token_ids == probe_ids
        assert failed.finish_reason == "length"
        assert failed.stats.draft_error == "head: ZeroDivisionError: no luck"
        monkeypatch.undo()
        again = engine.generate(PROBE, max_tokens=12, depth=2)
        assert again.token_ids == probe_ids
        assert again.stats.draft_error is None
        assert sum(again.stats.drafted_by_depth or ()) > 0


def test_without_the_head_the_text_alone_drafts(headed_folder: Path) -> None:
    with mk.load(headed_folder, head="none") as engine:
        assert engine.status()["drafters"] == ["lookup"]
        assert engine.status()["head"] == {}


def test_a_head_of_another_model_is_refused(headed_folder: Path, tmp_path: Path) -> None:
    tensors: Any = mx.load(str(headed_folder / "head.safetensors"), return_metadata=True)
    arrays, metadata = tensors
    arrays["base.norm"] = arrays["base.norm"] * 1.5
    mx.save_safetensors(str(tmp_path / "other.safetensors"), arrays, metadata)
    with pytest.raises(ModelUnusable) as caught:
        mk.load(headed_folder, head=tmp_path / "other.safetensors")
    assert str(caught.value) == (
        "other.safetensors is a head for another model: the final norms differ; distil one for this"
    )
