"""Conversion: mlx-lm's own quantisation, the head kept beside it, nothing half-made left behind."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

import mtplx_kernel as mk
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.heads.checkpoint import load_native
from mtplx_kernel.heads.families import classes_without_head
from mtplx_kernel.heads.native import NativeHead
from mtplx_kernel.models import convert as convert_module
from mtplx_kernel.models.catalog import resolve
from mtplx_kernel.models.convert import ConversionReport
from mtplx_kernel.models.target import Target
from tests.models import original
from tests.models.original import HIDDEN, converted, write

WITH_HEAD = ("qwen3_next", "deepseek_v3")
PROMPT = [72, 101, 108, 108, 111, 32, 119]
Arrays = dict[str, mx.array]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    return {kind: write(kind, folder / kind) for kind in original.KINDS}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path_factory.mktemp("cache")))


def open_folder(folder: Path) -> tuple[Target, NativeHead | None]:
    """A folder's target and head in float32, as on a CPU."""
    model, config = load_model(folder, get_model_classes=classes_without_head)
    model.set_dtype(mx.float32)
    target = Target(model)
    head = load_native(
        folder, config, shared=target.shared, hidden=HIDDEN, vocabulary=target.vocabulary
    )
    return target, head


def head_of(folder: Path) -> NativeHead:
    _, head = open_folder(folder)
    assert head is not None
    return head


def arrays(module: Any) -> Arrays:
    return dict(tree_flatten(module.parameters()))


def saved(folder: Path) -> Arrays:
    """What the model's own files hold."""
    found: Arrays = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found |= dict(mx.load(str(path)))  # type: ignore[arg-type]
    return found


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert bool(mx.array_equal(found[name], array)), name


def greedy(target: Target, count: int = 12) -> list[int]:
    """The likeliest continuation, each token from a whole forward."""
    ids = list(PROMPT)
    for _ in range(count):
        states = target.forward(mx.array([ids]), None)
        ids.append(int(target.logits(states[:, -1]).argmax()))
    return ids[len(PROMPT) :]


def drafts(folder: Path, tokens: mx.array) -> list[int]:
    """What a folder's head says after each pair of a row."""
    target, head = open_folder(folder)
    assert head is not None
    head.set_dtype(mx.float32)
    states = target.forward(tokens[:, :-1], None)
    own = head.feed(states, tokens[:, 1:], head.make_cache())
    return [int(n) for n in head.logits(own)[0].argmax(-1)]


def bits_of(head: NativeHead) -> dict[str, int]:
    return {path: m.bits for path, m in head.named_modules() if hasattr(m, "bits")}


@pytest.mark.parametrize(("kind", "head"), [("llama", None), ("qwen3_next", "qwen3_next")])
def test_the_model_becomes_what_mlx_lm_makes_of_it(
    kind: str, head: str | None, sources: dict[str, Path], tmp_path: Path
) -> None:
    report = converted(sources[kind], tmp_path / "ours", bits=4)
    mlx_lm.convert(
        str(sources[kind]), str(tmp_path / "theirs"), quantize=True, q_bits=4, q_group_size=32
    )
    assert_same(saved(tmp_path / "ours"), saved(tmp_path / "theirs"))
    for name in ("config.json", "model.safetensors.index.json"):
        made, expected = ((tmp_path / side / name).read_text() for side in ("ours", "theirs"))
        assert json.loads(made) == json.loads(expected)
    assert (tmp_path / "ours" / "mtp.safetensors").exists() == (head is not None)
    assert report.head_family == head
    assert report.head_bits == (None if head is None else 4)
    assert (report.head_parameters > 0) == (head is not None)


@pytest.mark.parametrize("kind", WITH_HEAD)
def test_without_bits_target_and_head_come_out_bit_for_bit(
    kind: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    made = tmp_path / "made"
    report = converted(sources[kind], made)
    model, tokenizer, *_ = mlx_lm.load(str(made))
    whole, _ = load_model(sources[kind], get_model_classes=classes_without_head)
    assert_same(arrays(model), arrays(whole))
    assert_same(arrays(head_of(made)), arrays(head_of(sources[kind])))
    assert tokenizer.encode("Hi") == [39, 72]
    ids = greedy(open_folder(made)[0])
    assert ids == greedy(open_folder(sources[kind])[0])
    assert len(set(ids)) > 3
    assert report.head_family == kind
    assert report.head_parameters == sum(a.size for a in arrays(head_of(made)).values())
    assert abs(report.bytes_after - report.bytes_before) < 0.1 * report.bytes_before


@pytest.mark.parametrize("kind", WITH_HEAD)
def test_the_engine_drafts_with_the_head_that_was_kept(
    kind: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    converted(sources[kind], tmp_path / "made")
    expected = tuple(greedy(open_folder(sources[kind])[0]))
    for folder in (sources[kind], tmp_path / "made"):
        with mk.load(str(folder)) as engine:
            assert engine.status()["head"]["name"] == kind
            for mode in ("mtp", "ar"):
                found = engine.generate(PROMPT, max_tokens=len(expected), mode=mode)
                assert found.token_ids == expected


@pytest.mark.parametrize(
    ("options", "least"),
    [
        # The head's own loss, on a target that is as it was; then the target's loss with it, which
        # is large where the weights are dice.
        ({"head_bits": 8}, 245),
        ({"head_bits": 4}, 210),
        ({"bits": 8}, 205),
    ],
)
@pytest.mark.parametrize("kind", WITH_HEAD)
def test_a_quantised_head_says_nearly_the_same(
    sources: dict[str, Path], tmp_path: Path, kind: str, options: dict[str, Any], least: int
) -> None:
    converted(sources[kind], tmp_path / "made", **options)
    mx.random.seed(1)
    tokens = mx.random.randint(0, 256, (1, 257))
    expected, found = (drafts(folder, tokens) for folder in (sources[kind], tmp_path / "made"))
    agreed = sum(a == b for a, b in zip(found, expected, strict=True))
    assert len(set(expected)) > 20
    assert least <= agreed < 256


def test_sensitive_parts_of_a_head_have_eight_bits_or_more(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    converted(sources["qwen3_next"], tmp_path / "q", bits=4)
    layer = "layers.0"
    assert bits_of(head_of(tmp_path / "q")) == {
        "fc": 8,
        f"{layer}.mlp.gate": 8,
        f"{layer}.mlp.shared_expert_gate": 8,
        **{f"{layer}.self_attn.{p}_proj": 4 for p in "qkvo"},
        **{
            f"{layer}.mlp.{kind}.{p}_proj": 4
            for kind in ("shared_expert", "switch_mlp")
            for p in ("gate", "up", "down")
        },
    }
    converted(sources["deepseek_v3"], tmp_path / "d", bits=4)
    whole, found = head_of(sources["deepseek_v3"]), head_of(tmp_path / "d")
    bits = bits_of(found)
    sensitive = {"fc", "embed", "output"} & {path.split(".")[0] for path in arrays(whole)}
    assert {path for path, n in bits.items() if n == 8} == sensitive
    assert {n for path, n in bits.items() if path not in sensitive} == {4}
    untouched = {n: a for n, a in arrays(whole).items() if "norm" in n or ".mlp.gate." in n}
    assert_same({n: arrays(found)[n] for n in untouched}, untouched)
    assert arrays(found)[f"{layer}.mlp.gate.e_score_correction_bias"].dtype == mx.float32


@pytest.mark.parametrize(("head_bits", "expected"), [(8, {8}), (6, {6, 8}), (16, set())])
def test_the_heads_bits_are_its_own(
    sources: dict[str, Path], tmp_path: Path, head_bits: int, expected: set[int]
) -> None:
    source = sources["qwen3_next"]
    report = converted(source, tmp_path / "made", bits=4, head_bits=head_bits)
    assert set(bits_of(head_of(tmp_path / "made")).values()) == expected
    assert report.head_bits == (None if head_bits == 16 else head_bits)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["quantization"]["bits"] == 4
    assert config["quantization"]["model.layers.0.mlp.gate"] == {"group_size": 64, "bits": 8}


def test_fp8_becomes_bfloat16_unless_bits_are_asked_for(tmp_path: Path) -> None:
    source = write("deepseek_v3", tmp_path / "fp8", packed=True)
    converted(source, tmp_path / "whole")
    converted(source, tmp_path / "four", bits=4)
    whole = arrays(mlx_lm.load(str(tmp_path / "whole"))[0])
    assert {a.dtype for n, a in whole.items() if a.ndim > 1} == {mx.bfloat16}
    assert {a.dtype for n, a in arrays(head_of(tmp_path / "whole")).items() if a.ndim > 1} == {
        mx.bfloat16
    }
    assert_same(whole, arrays(load_model(source, get_model_classes=classes_without_head)[0]))
    assert "quantization_config" not in json.loads((tmp_path / "whole/config.json").read_text())
    config = json.loads((tmp_path / "four/config.json").read_text())
    assert config["quantization_config"] == config["quantization"]
    assert config["quantization"]["bits"] == 4
    mlx_lm.load(str(tmp_path / "four"))


def test_what_is_quantised_is_copied_but_not_quantised_again(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    four, copy = tmp_path / "four", tmp_path / "copy"
    converted(sources["qwen3_next"], four, bits=4)
    report = converted(four, copy)
    assert_same(saved(copy), saved(four))
    assert_same(arrays(head_of(copy)), arrays(head_of(four)))
    assert json.loads((copy / "config.json").read_text()) == json.loads(
        (four / "config.json").read_text()
    )
    assert report.head_parameters == 55_968
    with pytest.raises(InvalidRequest) as error:
        converted(four, tmp_path / "eight", bits=8)
    assert str(error.value) == (
        "the head of four is already quantised; convert it with head_bits 16 to copy it, or take"
        " the original checkpoint"
    )
    with pytest.raises(InvalidRequest) as error:
        converted(four, tmp_path / "eight", bits=8, head_bits=16)
    assert str(error.value) == (
        "four is already quantised to 4 bits; convert it without bits to copy it, or take the"
        " original, or dequantise it first (mlx_lm.convert --dequantize)"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "four"]


def test_what_goes_with_the_weights_comes_along(sources: dict[str, Path], tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "new" / "made"
    shutil.copytree(sources["qwen3_next"], source)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    notes = {"format": "mtplx_kernel-head", "version": "1", "config": "{}"}
    mx.save_safetensors(str(source / "head.safetensors"), {"fuse.weight": mx.ones((2, 2))}, notes)
    (source / "mtplx_manifest.json").write_text("{}")
    (source / "notes.pdf").write_bytes(b"%PDF")
    report = converted(source, made, bits=4)
    assert report.distilled
    copied = [
        *("LICENSE", "chat_template.jinja", "generation_config.json", "head.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "additional_chat_templates/tools.jinja"),
    ]
    for name in copied:
        assert (made / name).read_bytes() == (source / name).read_bytes()
    files = {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()}
    assert files - set(copied) == {
        "README.md",
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "mtp.safetensors",
    }
    assert os.listdir(made.parent) == ["made"]
    config = json.loads((made / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 1
    assert (made / "README.md").read_text() == (
        "---\nlicense: apache-2.0\n---\n\n"
        "# source, converted\n\n"
        "Converted from `source` for mlx-lm by mtplx_kernel. Weights: 4 bits in groups of 32.\n\n"
        "The multi-token-prediction head (qwen3_next) is kept in `mtp.safetensors`, 4 bits."
        " mtplx_kernel drafts with it; mlx-lm does not read it.\n\n"
        "# A tiny model\n\nIt was made of dice.\n"
    )


def test_a_conversion_holds_no_matrix_of_the_head_before_it_is_written(
    sources: dict[str, Path],
) -> None:
    gc.collect()
    before = mx.get_active_memory()
    plan = convert_module._plan(resolve(str(sources["qwen3_next"])), None, 64, 16)
    assert plan.head_parameters == 55_968
    assert mx.get_active_memory() - before < 55_968, "of twice as many bytes"


def test_the_report_reads_well(tmp_path: Path) -> None:
    report = ConversionReport(
        source="org/model",
        destination=Path("out"),
        bits=4,
        group_size=64,
        layers_left=2,
        head_family="qwen3_next",
        head_bits=8,
        head_parameters=55_968,
        distilled=True,
        bytes_before=2_000_000,
        bytes_after=1_234_567,
        seconds=3.21,
    )
    assert str(report) == (
        "org/model → out\n"
        "model: 4 bits in groups of 64; 2 layers left whole\n"
        "head: qwen3_next, 55,968 parameters, 8 bits, in mtp.safetensors + a distilled head\n"
        "weights: 2.0 MB → 1.2 MB in 3.2 s"
    )
    plain = dataclasses.replace(report, bits=None, layers_left=0, head_family=None, distilled=False)
    assert str(plain).splitlines()[1:3] == [
        "model: precision kept",
        "head: the checkpoint holds none",
    ]


def test_layers_that_the_group_size_does_not_divide_stay_whole(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    report = converted(sources["llama"], tmp_path / "made", bits=4, group_size=128)
    model, *_ = mlx_lm.load(str(tmp_path / "made"))
    packed = {path for path, m in model.named_modules() if hasattr(m, "bits")}
    assert packed == {f"model.layers.{n}.mlp.down_proj" for n in range(4)}
    assert report.layers_left == 4 * 6 + 2
