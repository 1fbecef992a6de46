"""Every family's head survives a conversion: whole bit for bit, quantised in its whole shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from mtplx_kernel.heads.checkpoint import load_native
from mtplx_kernel.heads.families import FAMILIES, classes_without_head
from mtplx_kernel.heads.native import NativeHead
from mtplx_kernel.models.target import Target
from tests.heads.fixtures import checkpoints, harness
from tests.heads.oracle import ernie4_5_moe, exaone_moe, mimo, mimo_v2_flash, qwen, step3p5
from tests.heads.published import Published
from tests.models.original import converted

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


def write(kind: str, folder: Path) -> Path:
    if kind in PUBLISHED:
        return PUBLISHED[kind]().write(folder)
    folder.mkdir()
    return harness.write(kind, folder)


def open_head(folder: Path) -> NativeHead:
    model, config = load_model(folder, get_model_classes=classes_without_head)
    target = Target(model)
    norm = target.final_norm
    assert norm is not None
    head = load_native(
        folder, config, shared=target.shared, hidden=norm.size, vocabulary=target.vocabulary
    )
    assert head is not None
    return head


def arrays(head: NativeHead) -> dict[str, mx.array]:
    return dict(tree_flatten(head.parameters()))


def test_all_families_are_here(tmp_path: Path) -> None:
    kinds = {
        json.loads((write(kind, tmp_path / kind) / "config.json").read_text())["model_type"]
        for kind in KINDS
    }
    assert {f.name for f in FAMILIES if not f.model_types & kinds} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_head_comes_out_as_it_was(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path / "cache"))
    source = write(kind, tmp_path / "source")
    report = converted(source, tmp_path / "whole")
    load_model(tmp_path / "whole")
    before, after = arrays(open_head(source)), arrays(open_head(tmp_path / "whole"))
    assert after.keys() == before.keys()
    assert [n for n, a in before.items() if not mx.array_equal(after[n], a)] == []
    assert [n for n, a in before.items() if after[n].dtype != a.dtype] == []
    assert report.head_parameters == sum(a.size for a in before.values())
    if kind == "deepseek_v3_fp8":
        return  # of widths that no group size divides
    converted(source, tmp_path / "four", head_bits=4)
    packed = arrays(open_head(tmp_path / "four"))
    assert {n for n in packed if not n.endswith((".scales", ".biases"))} == before.keys()
    assert ("heads.2.fc.scales" if kind == "step3p5" else "fc.scales") in packed
    assert {n: a.dtype for n, a in before.items() if "norm" in n or a.ndim < 2} == {
        n: packed[n].dtype for n, a in before.items() if "norm" in n or a.ndim < 2
    }


def test_every_head_of_several_is_quantised_with_the_same_care(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path / "cache"))
    converted(write("step3p5", tmp_path / "source"), tmp_path / "four", bits=4)
    head = open_head(tmp_path / "four")
    bits = {path: m.bits for path, m in head.named_modules() if hasattr(m, "bits")}
    assert {path for path, n in bits.items() if n == 8} == {
        f"heads.{number}.{part}" for number in range(3) for part in ("fc", "output")
    }
    assert bits["heads.2.layers.0.self_attn.q_proj"] == 4
