"""Admission by memory: what can never fit is refused at submit, with the head's caches counted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from mtplx_kernel.caching.footprint import Footprint
from mtplx_kernel.decoding.params import GenerationMode
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.memory import GB, GPU_KEYS, Memory, budget, physical_memory
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig
from mtplx_kernel.heads.distilled_file import save_distilled
from mtplx_kernel.models.target import Target
from tests.engine.conftest import CONTEXT, PROBE, Start
from tests.tiny import COMMON, VOCABULARY

MODEL, HEAD = 4 * 2 * 2 * 16 * 4, 2 * 2 * 16 * 4
"""Bytes a position: layers, keys and values, heads, their size, bytes of a number."""
AR, MTP = GenerationMode.AR, GenerationMode.MTP


@pytest.fixture(scope="module")
def head(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for the tiny llama."""
    model, _ = load_model(tiny_folder)
    target = Target(model)
    hidden, layers = COMMON["hidden_size"], COMMON["num_hidden_layers"]
    config = HeadConfig(hidden, VOCABULARY, layers, (1, "final"), 4, 2, 16, 96)
    made = DistilledHead(config, target.shared, mx.arange(VOCABULARY, dtype=mx.int32))
    path = tmp_path_factory.mktemp("heads") / "head.safetensors"
    assert target.final_norm is not None
    save_distilled(path, made, target.final_norm)
    return path


def refusal(call: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_same_request_fits_without_the_head_and_not_with_it(start: Start, head: Path) -> None:
    weights = start(head=str(head)).status()["weights_bytes"]
    # Prompt and answer are 256 tokens, for which buffers come to have 512 positions at most.
    room = 512 * (MODEL + HEAD) - 1
    options: dict[str, Any] = {"memory_gb": (weights + room) / GB}
    asked: dict[str, Any] = {"max_tokens": 251, "ignore_eos": True}
    bare, full = start(head="none", **options), start(head=str(head), **options)
    assert len(bare.generate(PROBE, **asked).token_ids) == 251
    assert refusal(lambda: full.submit(PROBE, **asked)) == (
        f"caches of 256 tokens take 0.7 MB, and 0.7 MB are free ({(weights + room) / 1e6:.1f} MB "
        "less the weights): ask for at most 200 max_tokens, or load with a larger memory_gb"
    )
    assert full.status()["queue"]["waiting"] == 0
    # In mode ar the head is not fed.
    assert len(full.generate(PROBE, mode="ar", **asked).token_ids) == 251
    assert bare.status()["bytes_a_token"] == MODEL
    assert full.status()["bytes_a_token"] == MODEL + HEAD
    assert full.status()["memory_budget_bytes"] == weights + room


def test_what_is_admitted_holds_no_more_than_was_foretold(start: Start, head: Path) -> None:
    weights = start(head=str(head)).status()["weights_bytes"]
    engine = start(head=str(head), memory_gb=(weights + 256 * (MODEL + HEAD)) / GB)
    assert "at most 200 max_tokens" in refusal(lambda: engine.submit(PROBE, max_tokens=201))
    # One slot: its buffers serve one request after another, and are not counted twice.
    for _ in range(2):
        engine.generate(PROBE, max_tokens=200, ignore_eos=True, mode="mtp")
        assert engine.status()["caches_bytes"] == 256 * (MODEL + HEAD)


def test_a_batch_refuses_only_what_does_not_fit(start: Start) -> None:
    weights = start(head="none").status()["weights_bytes"]
    engine = start(head="none", memory_gb=(weights + 256 * MODEL) / GB)
    short, long = engine.generate_batch([PROBE, [1] * 230], max_tokens=9, ignore_eos=True)
    assert not isinstance(short, Exception)
    assert len(short.token_ids) == 9
    assert isinstance(long, InvalidRequest)
    assert "less the weights): shorten the prompt, or load with" in str(long)


def test_an_answer_ends_where_the_context_does(start: Start) -> None:
    weights = start(head="none").status()["weights_bytes"]
    engine = start(head="none", memory_gb=(weights + 2 * CONTEXT * MODEL) / GB)
    handle = engine.submit(PROBE, max_tokens=10**9)
    handle.cancel()
    handle.wait()


def test_exact_limits() -> None:
    memory = Memory(
        budget_bytes=10_000 + 500 + 256 * 10,
        weights_bytes=10_000,
        model=Footprint(fixed=500, position=10),
        head=Footprint(position=1),
    )
    memory.admit(100, 205, AR)  # 205 tokens and a quarter are 256 positions
    assert "take 0.0 MB" in refusal(lambda: memory.admit(100, 206, AR))
    refusal(lambda: memory.admit(100, 205, MTP))  # no position is left to the head
    assert "shorten the prompt" in refusal(lambda: memory.admit(205, 206, AR))
    Memory(None, 10_000, memory.model, memory.head).admit(1, 10**9, MTP)
    too_large = Memory(9_000, 10_000, memory.model, memory.head)
    assert "0.0 MB are free" in refusal(lambda: too_large.admit(1, 2, AR))


@pytest.mark.parametrize("wrong", [0, -1, True, "8", float("nan"), float("inf")])
def test_a_wrong_budget_is_refused_before_anything_is_loaded(wrong: Any) -> None:
    message = f"memory_gb must be a number above 0, or None, not {wrong!r}"
    with pytest.raises(InvalidRequest, match=f"^{re.escape(message)}$"):
        Engine("no-such-model", memory_gb=wrong)


def test_a_containers_limit_counts_where_it_is_lower(tmp_path: Path) -> None:
    machine = physical_memory(())
    assert machine is not None
    assert machine > 2**28
    low, none, huge = (tmp_path / name for name in ("low", "none", "huge"))
    low.write_text("200000000\n")
    none.write_text("max\n")
    huge.write_text("9223372036854771712\n")
    assert physical_memory((none, tmp_path / "missing", huge)) == machine
    assert physical_memory((none, low)) == 200_000_000


def test_the_budget_is_a_share_of_the_device(
    shared_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = physical_memory()
    assert machine is not None
    assert budget() == int(0.85 * machine) == shared_engine.status()["memory_budget_bytes"]

    class Gpu:
        type = mx.DeviceType.gpu

    monkeypatch.setattr(mx, "default_device", Gpu)
    for key in GPU_KEYS:
        monkeypatch.setattr(mx, "device_info", lambda key=key: {"device_name": "x", key: 1000})
        assert budget() == 850
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "x"})
    assert budget() is None
