"""A model that is missing, damaged or unusual: one line that says so, or mode ar and the reason."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama
from mlx_lm.models.cache import ChunkedKVCache

import mtplx_kernel as mk
from mtplx_kernel.engine import engine as engine_module
from mtplx_kernel.engine import fit as fit_module
from mtplx_kernel.engine import owner as owner_module
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import InvalidRequest, ModelNotFound, ModelUnusable, MTPLXError
from tests.engine.conftest import PROBE, Start
from tests.engine.gates import PATIENCE_S, Gate, interrupt_main_thread, owner_threads

Damage = Callable[[Path], Any]


def config(**changes: Any) -> Damage:
    """Change the config; None takes a key away."""

    def apply(folder: Path) -> None:
        path = folder / "config.json"
        found = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))

    return apply


def content(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data)


def half(name: str) -> Damage:
    def apply(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return apply


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


DAMAGES: dict[str, tuple[Damage, str]] = {
    "truncated weights": (half("model.safetensors"), "exceeding the size of the file"),
    "empty weights": (content("model.safetensors", b""), "Unable to read 8 bytes"),
    "no weights": (without("model.safetensors"), "No safetensors found"),
    "no config": (without("config.json"), "has no config.json"),
    "half a config": (half("config.json"), "line 1 column"),
    "binary config": (content("config.json", b"\xff\xfe\x00"), "can't decode byte"),
    "a list as config": (content("config.json", b"[1]"), "has no attribute 'get'"),
    "no tokenizer": (without("tokenizer.json"), "Couldn't instantiate the backend tokenizer"),
    "half a tokenizer": (half("tokenizer.json"), "cannot be loaded"),
    "an unknown family": (config(model_type="nosuch"), "Model type nosuch not supported"),
    "no family": (config(model_type=None), "'model_type'"),
    "another width": (config(hidden_size=32), "Expected shape (260, 32)"),
    "fewer layers": (config(num_hidden_layers=2), "Received 18 parameters not in model"),
    "more layers": (config(num_hidden_layers=6), "Missing 18 parameters"),
    "a text config of another shape": (
        config(text_config=[1], max_position_embeddings=None),
        "'list' object has no attribute",
    ),
    "no heads": (config(num_attention_heads=0), "division by zero"),
    "words for numbers": (config(vocab_size="many"), "'str'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder(tiny_folder: Path, tmp_path: Path, engine: Engine, name: str) -> None:
    damage, expected = DAMAGES[name]
    folder = shutil.copytree(tiny_folder, tmp_path / "damaged")
    damage(folder)
    gc.collect()
    memory, threads = mx.get_active_memory(), owner_threads()
    with pytest.raises(ModelUnusable) as caught:
        mk.load(str(folder))
    message = str(caught.value)
    assert expected in message
    assert "damaged" in message
    assert len(message.splitlines()) == 1
    # Nothing is held, though the error and its traceback are.
    assert mx.get_active_memory() == memory
    assert owner_threads() == threads


def test_a_model_that_is_not_there(tmp_path: Path, engine: Engine) -> None:
    for name in ("smollm3", str(tmp_path / "nothing"), tmp_path / "nothing"):
        with pytest.raises(ModelNotFound) as caught:
            mk.load(name)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ModelUnusable, match=r"has no config\.json"):
        mk.load(tmp_path)


def test_options_are_checked_before_the_model(tmp_path: Path) -> None:
    for options, expected in (
        ({"mode": "fast"}, "mode must be one of"),
        ({"scheduler": "fast"}, "scheduler 'fast' is no scheduler"),
        ({"queue_limit": 0}, "queue_limit must be at least 1"),
        ({"queue_limit": True}, "queue_limit must be at least 1"),
    ):
        with pytest.raises(InvalidRequest, match=expected):
            mk.load("nothing/there", **options)


def test_a_context_length_that_makes_no_sense(
    tiny_folder: Path, tmp_path: Path, start: Start, probe_ids: tuple[int, ...]
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    config(max_position_embeddings=0)(folder)
    engine = start(folder)
    assert engine.generate(PROBE, max_tokens=12).token_ids == probe_ids
    json.dumps(engine.status())


@pytest.mark.parametrize("error", [RuntimeError("[metal]\n no kernel"), KeyError("rope")], ids=repr)
def test_a_model_that_loads_but_does_not_run(
    tiny_folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    gc.collect()
    memory, threads = mx.get_active_memory(), owner_threads()
    monkeypatch.setattr(fit_module, "choose_caches", failing)
    with pytest.raises(ModelUnusable) as caught:
        mk.load(str(tiny_folder))
    reason = " ".join(str(error).split())
    assert str(caught.value) == (
        f"tiny-llama cannot be run here: {type(error).__name__}: {reason}; try another model"
    )
    assert caught.value.__cause__ is error
    assert mx.get_active_memory() == memory
    assert owner_threads() == threads


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_an_end_of_the_process_is_no_fault_of_the_model(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    def ending(*_: Any, **__: Any) -> None:
        raise end

    monkeypatch.setattr(fit_module, "choose_caches", ending)
    with pytest.raises(end):
        mk.load(str(tiny_folder))


@pytest.fixture
def unsupported_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_cache(model: Any) -> list[Any]:
        return [ChunkedKVCache(8192) for _ in model.layers]

    monkeypatch.setattr(llama.Model, "make_cache", make_cache, raising=False)


@pytest.mark.usefixtures("unsupported_caches")
def test_caches_that_cannot_go_back_run_mode_ar(start: Start, probe_ids: tuple[int, ...]) -> None:
    engine = start()
    why = "a layer uses ChunkedKVCache, which cannot take tokens back"
    assert engine.mode == "ar"
    assert engine.mode_reason == f"tiny-llama runs in mode ar only: {why}"
    status = json.loads(json.dumps(engine.status()))
    assert status["mode"] == "ar"
    assert status["mode_reason"] == engine.mode_reason
    assert status["caches"] == {"rollback": False, "reason": why}
    assert status["drafters"] == []
    for _ in range(2):
        found = engine.generate(PROBE, max_tokens=12)
        assert found.token_ids == probe_ids
        assert found.stats.generation_mode == "ar"
        with pytest.raises(InvalidRequest) as caught:
            engine.generate(PROBE, mode="mtp")
        assert str(caught.value) == f"mode mtp cannot be had: {engine.mode_reason}"
    with pytest.raises(InvalidRequest, match="mode mtp cannot be had"):
        engine.configure(mode="mtp")
    assert engine.mode == "ar"


@pytest.mark.usefixtures("unsupported_caches")
def test_mode_mtp_at_load_is_refused_where_it_cannot_be_had(tiny_folder: Path) -> None:
    before = owner_threads()
    with pytest.raises(InvalidRequest, match="mode mtp cannot be had: tiny-llama runs in mode ar"):
        mk.load(str(tiny_folder), mode="mtp")
    assert owner_threads() == before


def test_a_mode_at_load_is_the_default(start: Start) -> None:
    engine = start(mode="ar")
    assert engine.generate(PROBE, max_tokens=1).stats.generation_mode == "ar"


def test_loading_while_generating(
    start: Start, engine: Engine, other_folder: Path, probe_ids: tuple[int, ...]
) -> None:
    expected = start(other_folder).generate(PROBE, max_tokens=12).token_ids
    long = engine.generate(PROBE, max_tokens=400, ignore_eos=True).token_ids
    gate = Gate()
    running = engine.submit(PROBE, max_tokens=400, ignore_eos=True, on_token=gate)
    gate.await_reached()
    gate.open()
    second = start(other_folder)
    assert second.generate(PROBE, max_tokens=12).token_ids == expected
    assert running.result(PATIENCE_S).token_ids == long
    assert expected != probe_ids


def test_an_interrupted_load_lets_go_of_everything(
    tiny_folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    memory, threads, gate, load = mx.get_active_memory(), owner_threads(), Gate(), owner_module.load

    def interrupted(*model: Any, **told: Any) -> Any:
        interrupt_main_thread()
        gate(0, "")
        return load(*model, **told)

    monkeypatch.setattr(owner_module, "load", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        mk.load(str(tiny_folder))
    (left,) = set(owner_threads()) - set(threads)
    gate.open()
    left.join(PATIENCE_S)
    assert not left.is_alive()
    assert mx.get_active_memory() == memory
    assert caught.tb is not None  # a shell keeps the traceback, and with it the engine's frame


def test_an_interrupt_just_after_the_load_lets_go_of_everything(
    tiny_folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    memory, threads = mx.get_active_memory(), owner_threads()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_module, "PromptEncoder", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        mk.load(str(tiny_folder))
    assert owner_threads() == threads
    assert mx.get_active_memory() == memory
    assert caught.tb is not None


def test_load_errors_are_errors_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(MTPLXError):
        mk.load(str(tmp_path))
