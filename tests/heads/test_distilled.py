"""A distilled head's file: what is written is read, and what does not fit is refused in a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.base import Shared
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig, draft_logits, output_rows
from mtplx_kernel.heads.distilled_file import load_distilled, save_distilled

HIDDEN, VOCABULARY, LAYERS = 64, 90, 4
CONFIG = HeadConfig(HIDDEN, VOCABULARY, LAYERS, (1, 3, "final"), 4, 2, 16, 128)
IDS = mx.array([7, 3, 80, 21, 0], mx.int32)
NORM = mx.linspace(0.5, 1.5, HIDDEN)


def make_shared(output: nn.Module | None = None) -> Shared:
    mx.random.seed(0)
    embedding = nn.Embedding(VOCABULARY, HIDDEN)
    return Shared(embedding, embedding.as_linear, output or embedding)


def make_head() -> DistilledHead:
    head = DistilledHead(CONFIG, make_shared(), IDS)
    exact = [(k, in_file(k, a).astype(mx.float32)) for k, a in parameters(head).items()]
    head.load_weights(exact)
    return head


def in_file(name: str, array: mx.array) -> mx.array:
    """What a file keeps of a parameter: packed in 8 bits that of the feed-forward layer."""
    packed = name.startswith("mlp.")
    return mx.dequantize(*mx.quantize(array, 64, 8), 64, 8) if packed else array.astype(mx.bfloat16)


def parameters(head: DistilledHead) -> dict[str, mx.array]:
    found: dict[str, mx.array] = tree_flatten(head.parameters(), destination={})
    return found


def load(path: Path, **changes: Any) -> DistilledHead:
    known: dict[str, Any] = {
        "shared": make_shared(),
        "base_norm": NORM,
        "hidden": HIDDEN,
        "vocabulary": VOCABULARY,
        "layers": LAYERS,
    }
    return load_distilled(path, **{**known, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "head.safetensors"
    save_distilled(made, make_head(), NORM)
    return made


def test_round_trip(path: Path) -> None:
    head, loaded = make_head(), load(path)
    assert loaded.config == CONFIG
    assert loaded.taps == (1, 3, "final")
    assert loaded.vocabulary.tolist() == IDS.tolist()
    expected = parameters(head)
    assert set(parameters(loaded)) == set(expected)
    for name, array in parameters(loaded).items():
        assert array.dtype == mx.float32
        off = 0.001 if name.startswith("mlp.") else 0.0  # a step of 8 bits; weights are up to 0.125
        assert mx.allclose(array, expected[name], rtol=0, atol=off)
    features = mx.random.normal((1, 3, 3 * HIDDEN))
    tokens = mx.array([[4, 5, 6]])
    states = [h.feed(features, tokens, h.make_cache()) for h in (head, loaded)]
    assert mx.allclose(*states, atol=0.01)
    assert head.logits(states[0]).shape == (1, 3, 5)


def test_the_feed_forward_layer_is_packed_within_a_step(path: Path) -> None:
    mx.random.seed(0)
    head = DistilledHead(CONFIG, make_shared(), IDS)
    save_distilled(path, head, NORM)
    loaded = load(path)
    for name in ("gate_proj", "up_proj", "down_proj"):
        whole, read = (h.mlp[name].weight.reshape(-1, 64) for h in (head, loaded))
        steps = (whole.max(-1, keepdims=True) - whole.min(-1, keepdims=True)) / 255
        assert (mx.abs(whole - read) <= 1.01 * steps).all()
        assert not mx.array_equal(whole, read)


def test_a_layer_that_cannot_be_packed_is_written_as_it_is(tmp_path: Path) -> None:
    mx.random.seed(0)
    head = DistilledHead(replace(CONFIG, hidden=32, intermediate=48), make_shared(), IDS)
    save_distilled(tmp_path / "head.safetensors", head, mx.ones(32))
    tensors, metadata = mx.load(str(tmp_path / "head.safetensors"), return_metadata=True)
    assert metadata["version"] == "1"
    assert {tensors[f"mlp.{n}_proj.weight"].dtype for n in ("up", "down")} == {mx.bfloat16}


def test_refuses_a_packed_layer_without_its_scales(path: Path) -> None:
    assert "damaged" in refused(path, lambda t, m: t.pop("mlp.up_proj.scales"))
    assert "damaged" in refused(path, lambda t, m: t.pop("mlp.up_proj.biases"))


def test_the_file_is_bfloat16_and_says_what_it_is(path: Path) -> None:
    tensors, metadata = mx.load(str(path), return_metadata=True)
    assert {metadata[k] for k in ("format", "version")} == {"mtplx_kernel-head", "2"}
    assert tensors["mlp.up_proj.weight"].dtype == mx.uint32
    assert tensors["mlp.up_proj.weight"].shape == (128, 16)  # four weights in one number
    assert HeadConfig.from_json(metadata["config"]) == CONFIG
    assert tensors["fuse.weight"].dtype == mx.bfloat16
    assert tensors["vocabulary"].dtype == mx.int32


def test_a_prefix_of_the_vocabulary(path: Path) -> None:
    loaded = load(path, columns=2, dtype=mx.bfloat16)
    assert loaded.vocabulary.tolist() == [7, 3]
    states = mx.random.normal((4, HIDDEN))
    assert loaded.logits(states).shape == (4, 2)
    assert mx.allclose(loaded.logits(states), make_head().logits(states)[:, :2])
    assert mx.allclose(make_head().logits(states, 2), loaded.logits(states))
    assert {a.dtype for a in parameters(loaded).values()} == {mx.bfloat16}


def test_logits_are_the_targets_own_at_the_drafted_ids() -> None:
    states = mx.random.normal((3, HIDDEN))
    mx.random.seed(1)
    outputs: list[nn.Module] = [
        nn.Linear(HIDDEN, VOCABULARY, bias=True),
        nn.Linear(HIDDEN, VOCABULARY, bias=False),
        nn.Linear(HIDDEN, VOCABULARY, bias=True).to_quantized(group_size=32, bits=8),
    ]
    for output in outputs:
        drafted = draft_logits(output_rows(output, IDS), states)
        assert mx.allclose(drafted, output(states)[:, IDS], atol=1e-5)
    embedding = nn.Embedding(VOCABULARY, HIDDEN).to_quantized(group_size=32, bits=4)
    drafted = draft_logits(output_rows(embedding, IDS), states)
    assert mx.allclose(drafted, embedding.as_linear(states)[:, IDS], atol=1e-5)


def test_what_it_holds_beside_its_parameters() -> None:
    """The ids, int32, and five rows of the output: float32, or 4 bits with scales and biases."""
    assert sum(a.nbytes for a in make_head().gathered) == 5 * 4 + 5 * HIDDEN * 4
    output = nn.Linear(HIDDEN, VOCABULARY, bias=False).to_quantized(group_size=32, bits=4)
    packed = DistilledHead(CONFIG, make_shared(output), IDS)
    assert sum(a.nbytes for a in packed.gathered) == 5 * 4 + 5 * HIDDEN // 2 + 2 * 5 * 2 * 4


def test_deeper_passes_do_not_fuse() -> None:
    head = make_head()
    cache = head.make_cache()
    states = head.feed(mx.random.normal((1, 1, 3 * HIDDEN)), mx.array([[4]]), cache)
    assert cache[0].offset == 1
    head.tap_norms[0].weight = mx.zeros((HIDDEN,))
    once = head.recur(states, mx.array([[5]]), cache)
    assert cache[0].offset == 2
    assert once.shape == (1, 1, HIDDEN)


Tensors = dict[str, mx.array]


def refused(path: Path, change: Callable[[Tensors, dict[str, str]], object]) -> str:
    tensors, metadata = mx.load(str(path), return_metadata=True)
    mx.eval(tensors)
    change(tensors, metadata)
    mx.save_safetensors(str(path), tensors, metadata)
    return refusal(path)


def refusal(path: Path, **changes: Any) -> str:
    with pytest.raises(ModelUnusable) as caught:
        load(path, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refuses_what_is_no_head(path: Path, tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "none.safetensors")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(path.read_bytes()[:-1000])
    assert "cannot be read" in refusal(torn)
    assert "not a distilled head" in refused(path, lambda t, m: m.pop("format"))


def test_refuses_other_versions(path: Path) -> None:
    assert "version 3" in refused(path, lambda t, m: m.update(version="3"))


def test_refuses_damage(path: Path) -> None:
    assert "damaged" in refused(path, lambda t, m: t.pop("fc.weight"))


def test_refuses_wrong_shapes(path: Path) -> None:
    assert "damaged" in refused(path, lambda t, m: t.update({"fc.weight": mx.zeros((2, 2))}))


def test_refuses_a_config_that_cannot_be_read(path: Path) -> None:
    assert "config" in refused(path, lambda t, m: m.update(config="{}"))


def test_refuses_vocabularies_that_do_not_fit(path: Path) -> None:
    assert "vocabulary" in refused(path, lambda t, m: t.update(vocabulary=mx.array([1, 90])))
    assert "vocabulary" in refused(path, lambda t, m: t.pop("vocabulary"))


@pytest.mark.parametrize(
    "ids",
    [
        mx.array([7, 3, -1]),
        mx.array([7, 3, 7]),
        mx.array([7.0, 3.0]),
        mx.array([True, False]),
        mx.array([[7, 3]]),
        mx.array([2**32 + 7, 3], mx.int64),
        mx.zeros((0,), mx.int32),
    ],
    ids=["negative", "repeated", "fractions", "truths", "square", "wide", "none"],
)
def test_refuses_ids_that_are_not_distinct_whole_ids(path: Path, ids: mx.array) -> None:
    assert refused(path, lambda t, m: t.update(vocabulary=ids)) == (
        "head.safetensors is damaged: its draft vocabulary is missing or not valid; "
        "it must be distinct whole ids from 0 to 89"
    )


def test_takes_ids_of_any_whole_type(path: Path) -> None:
    tensors, metadata = mx.load(str(path), return_metadata=True)
    mx.eval(tensors)
    tensors["vocabulary"] = tensors["vocabulary"].astype(mx.uint64)
    mx.save_safetensors(str(path), tensors, metadata)
    loaded = load(path)
    assert loaded.vocabulary.dtype == mx.int32
    assert loaded.vocabulary.tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("taps", "final"),
        ("taps", None),
        ("taps", []),
        ("taps", [1, 4, "final"]),
        ("taps", [1, -5, "final"]),
        ("taps", [0.5, 3, "final"]),
        ("taps", [True, 3, "final"]),
        ("taps", [1, 3, "finall"]),
        ("rope_base", None),
        ("rope_base", 0),
        ("eps", "a"),
        ("eps", float("nan")),
        ("heads", 0),
        ("heads", True),
        ("heads", 2**63),
        ("kv_heads", 3),
        ("head_dim", -16),
        ("head_dim", 15),
        ("hidden", "64"),
        ("layers", 4.0),
        ("intermediate", None),
        ("more", 1),
    ],
)
def test_refuses_configs_of_no_head(path: Path, field: str, value: object) -> None:
    config = {**json.loads(CONFIG.to_json()), field: value}
    message = refused(path, lambda t, m: m.update(config=json.dumps(config)))
    assert message.startswith("head.safetensors is damaged: its config cannot be read (")
    assert message.endswith("; distil or copy it anew")


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 100_000])
def test_refuses_configs_that_are_no_fields(path: Path, text: str) -> None:
    assert "its config cannot be read (" in refused(path, lambda t, m: m.update(config=text))


def test_refuses_more_columns_than_there_are(path: Path) -> None:
    assert "ask for 1 to 5" in refusal(path, columns=6)
    assert "ask for 1 to 5" in refusal(path, columns=0)


@pytest.mark.parametrize("size", ["hidden", "vocabulary", "layers"])
def test_refuses_a_model_of_other_sizes(path: Path, size: str) -> None:
    assert "this one has" in refusal(path, **{size: 91})


def test_refuses_another_model_of_the_same_sizes(path: Path) -> None:
    assert "another model" in refusal(path, base_norm=mx.ones((HIDDEN,)))
    not_numbers = {"base.norm": mx.full((HIDDEN,), mx.nan)}
    assert "another model" in refused(path, lambda t, m: t.update(not_numbers))
    assert "another model" in refused(path, lambda t, m: t.pop("base.norm"))


def test_takes_its_model_in_another_precision(path: Path) -> None:
    assert load(path, base_norm=NORM.astype(mx.bfloat16)).config == CONFIG


def test_a_config_reads_back() -> None:
    other = replace(CONFIG, taps=("final",), rope_base=1e6)
    assert HeadConfig.from_json(other.to_json()) == other
