"""An engine with a head: what it says of it, the same ids, and a head that fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.llama import TransformerBlock

import mtplx_kernel as mk
from mtplx_kernel.caching.slots import StockCaches
from mtplx_kernel.decoding.depth import CostCurve
from mtplx_kernel.engine import engine as engine_module
from mtplx_kernel.engine import fit as fit_module
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import InvalidRequest, ModelUnusable
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig
from mtplx_kernel.heads.distilled_file import save_distilled
from mtplx_kernel.models import head as head_module
from mtplx_kernel.models import measured
from mtplx_kernel.models.catalog import CATALOG, ModelSource
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


def steady_costs(*_: Any, **__: Any) -> tuple[CostCurve, bool]:
    """Costs as of a machine that nothing else runs on: they are kept."""
    return CostCurve((1, 2, 4), (0.001, 0.0011, 0.0012)), True


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
    # Besides, the drafted ids and their rows of the model's output head, all of four bytes each.
    assert head["bytes"] == 4 * head["parameters"] + 4 * DRAFTED * (1 + 64)
    assert status["head_reason"] is None
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


@pytest.mark.parametrize(
    ("head", "kind"), [(None, InvalidRequest), (b"x", InvalidRequest), ("nowhere", ModelUnusable)]
)
def test_a_head_that_cannot_be_is_refused_before_the_model_is_resolved(
    monkeypatch: pytest.MonkeyPatch, head: Any, kind: type[Exception]
) -> None:
    def resolved(*_: Any, **__: Any) -> ModelSource:
        raise AssertionError("the model was resolved")

    monkeypatch.setattr(engine_module.catalog, "resolve", resolved)
    with pytest.raises(kind, match="give 'auto', 'none', a distilled head"):
        mk.load("smollm2-135m", head=head)


def test_the_shipped_head_is_for_the_catalogs_model_alone(
    headed_folder: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = CATALOG
    shipped, named = tmp_path / "shipped" / name, tmp_path / name
    shipped.mkdir(parents=True)
    shutil.copy(headed_folder / "head.safetensors", shipped)
    shutil.copytree(tiny_folder, named)
    monkeypatch.setattr(head_module, "SHIPPED", shipped.parent)
    with mk.load(named) as engine:
        assert (engine.name, engine.status()["head"]) == (name, {})
    source = ModelSource(name, tiny_folder, "catalog")
    monkeypatch.setattr(engine_module.catalog, "resolve", lambda *_, **__: source)
    with mk.load(name) as engine:
        assert engine.status()["head"]["source"] == str(shipped / "head.safetensors")


@pytest.mark.parametrize("known", [False, True])
def test_a_head_that_fails_when_it_is_first_run(
    headed_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """It is told as the head's, whether or not its costs have to be measured."""

    def failing(*_: Any) -> mx.array:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    if known:
        monkeypatch.setattr(fit_module, "measure_costs", steady_costs)
        with mk.load(headed_folder):
            assert measured.count() == 1
    monkeypatch.setattr(DistilledHead, "feed", failing)
    with pytest.raises(ModelUnusable) as caught:
        mk.load(headed_folder)
    assert str(caught.value) == (
        f"the head in {headed_folder / 'head.safetensors'} cannot be run here: ZeroDivisionError:"
        " no luck; load with the head 'none' to do without it"
    )


def test_a_head_that_fails_while_it_is_measured(
    headed_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recur, passes = DistilledHead.recur, []

    def failing(*given: Any) -> mx.array:
        passes.append(given)
        if len(passes) > 2:
            raise ZeroDivisionError("no luck")
        return recur(*given)

    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    monkeypatch.setattr(DistilledHead, "recur", failing)
    with pytest.raises(
        ModelUnusable, match=r"cannot be run here: ZeroDivisionError: no luck; load"
    ):
        mk.load(headed_folder)


def test_costs_without_the_head_are_measured_anew(
    headed_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_folder", lambda: tmp_path)
    monkeypatch.setattr(fit_module, "measure_costs", steady_costs)
    with mk.load(headed_folder) as engine:
        key = engine.measured_key
    known, _ = measured.recall(key)
    assert known is not None
    measured.keep(key, replace(known, head={}))
    with mk.load(headed_folder) as engine:
        assert engine.status()["costs_from"] == (
            "measured at this load: the cached one is without the head"
        )
    again, _ = measured.recall(key)
    assert again is not None
    assert set(again.head) == {"first", "step"}


def test_a_head_for_a_model_that_takes_no_tokens_back(
    headed_folder: Path,
    shared_engine: Engine,
    probe_ids: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never drafts: it is let go, and no layer is watched for it."""
    monkeypatch.setattr(
        fit_module, "choose_caches", lambda target: (StockCaches(target.model), "for a test")
    )
    with mk.load(headed_folder) as engine:
        status = engine.status()
        assert (status["mode"], status["drafters"], status["head"]) == ("ar", [], {})
        assert status["head_reason"] == (
            f"the head in {headed_folder / 'head.safetensors'} does not draft: for a test"
        )
        assert status["weights_bytes"] == shared_engine.status()["weights_bytes"]
        loaded = engine._owner.loaded
        assert loaded is not None
        assert loaded.head is None
        layers = loaded.target.inner.layers
        assert {type(layer) for layer in layers} == {TransformerBlock}
        assert engine.generate(PROBE, max_tokens=12).token_ids == probe_ids
