"""The cache of measurements: what is kept comes back for the same machine and model only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from mtplx_kernel.decoding.depth import HeadCost
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.models import measured
from mtplx_kernel.models.catalog import cache_dir
from mtplx_kernel.models.manifest import write_manifest
from mtplx_kernel.models.measured import (
    LONGEST_AGE_S,
    Lanes,
    Measured,
    Tuned,
    keep,
    keep_lanes,
    keep_tuned,
    recall,
    recall_lanes,
    recall_tuned,
)

NOW = 1_800_000_000.0
FOUND = Measured(
    tokens=(1, 2, 4),
    seconds=(0.05, 0.055, 0.07),
    head={"first": 0.004, "step": 0.006},
    threads=1,
    when=NOW,
)

LANES = Lanes(
    tokens=(1, 4),
    seconds={2: (0.06, 0.07), 8: (0.08, 0.15)},
    head={2: {"first": 0.004, "step": 0.006}, 8: {"first": 0.01, "step": 0.01}},
    position=0.0003,
    when=NOW,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measured, "_folder", lambda: cache_dir() / measured.FOLDER)
    return tmp_path / "cache" / "measured"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "llama"}')
    (made / "model.safetensors").write_bytes(b"x" * 100)
    return made


def a_key(folder: Path, **changes: str) -> str:
    return measured.key(
        **{
            "folder": folder,
            "precision": "float32",
            "device": "cpu",
            "blas": "OpenBLAS 0.3.34 Zen, 2 threads",
            **changes,
        }  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("found", [FOUND, replace(FOUND, threads=None, head={})])
def test_what_is_kept_comes_back(cache: Path, found: Measured) -> None:
    assert recall("k", NOW) == (None, "nothing was measured here before")
    assert measured.count() == 0
    assert keep("k", found) is None
    assert recall("k", NOW + 60) == (found, None)
    assert [path.name for path in cache.iterdir()] == ["k.json"]
    assert measured.count() == 1
    assert recall("other", NOW) == (None, "nothing was measured here before")


def test_a_month_later_it_is_measured_anew() -> None:
    keep("k", FOUND)
    assert recall("k", NOW + LONGEST_AGE_S)[0] == FOUND
    found, reason = recall("k", NOW + LONGEST_AGE_S + 1)
    assert (found, reason) == (None, f"the cached one is of {FOUND.date}")
    # A clock that was wrong when it was measured.
    assert recall("k", NOW - 1)[0] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        json.dumps({"tokens": [1], "seconds": [1.0], "head": {}, "threads": None}),
        '{"tokens": [1], "seconds": [NaN], "head": {}, "threads": null, "when": 1}',
        '{"tokens": [2], "seconds": [1], "head": {}, "threads": null, "when": 1}',
        '{"tokens": [1], "seconds": [], "head": {}, "threads": null, "when": 1}',
        '{"tokens": [1], "seconds": [1], "head": [], "threads": null, "when": 1}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_a_reason_and_is_written_over(cache: Path, text: str) -> None:
    cache.mkdir(parents=True)
    (cache / "k.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert recall("k", NOW) == (None, "the cached file is damaged")
    assert keep("k", FOUND) is None
    assert recall("k", NOW)[0] == FOUND


@pytest.mark.parametrize(
    "change",
    [
        {"head": {"first": 0.1, "second": 0.2}},
        {"head": {"first": 0.1}},
        {"head": {"first": 0.1, "step": "0.1"}},
        {"tokens": [1], "seconds": [0.1]},
        {"tokens": [1, 2.5, 4]},
        {"tokens": [True, 2, 4]},
        {"tokens": [1, 2, 10**400]},
        {"seconds": ["1", "2", "3"]},
        {"seconds": [0.1, 0.2, 10**400]},
        {"seconds": [0.1, 0.2, 3601]},
        {"seconds": [0.2, 0.2, 0.1]},  # 64 tokens would take less than nothing
        {"threads": 0},
        {"threads": -1},
        {"threads": True},
        {"threads": 1.0},
        {"threads": 10**9},
        {"when": 10**400},
        {"when": 1e300},
        {"when": "today"},
    ],
)
def test_what_no_measurement_can_be_is_a_damaged_file(
    cache: Path, change: dict[str, object]
) -> None:
    good = {name: value for name, value in asdict(FOUND).items() if name != "tuned"}
    cache.mkdir(parents=True)
    (cache / "k.json").write_text(json.dumps(good))
    assert recall("k", NOW) == (FOUND, None)
    (cache / "k.json").write_text(json.dumps({**good, **change}))
    assert recall("k", NOW) == (None, "the cached file is damaged")


def test_a_file_that_nests_too_deep_is_damaged(cache: Path) -> None:
    cache.mkdir(parents=True)
    for name in ("k.json", "k.tuned.json"):
        (cache / name).write_text("[" * 100_000)
    assert recall("k", NOW) == (None, "the cached file is damaged")
    assert recall_tuned("k", NOW) is None


def test_a_curve_that_falls_a_little_is_believed() -> None:
    """On a GPU a longer block may have been timed as the faster one."""
    flat = replace(FOUND, tokens=(1, 8, 17), seconds=(0.01, 0.011, 0.0105))
    keep("k", flat)
    assert recall("k", NOW)[0] == flat


def test_the_names_and_bounds_are_those_of_drafting() -> None:
    assert {field.name for field in fields(HeadCost)} == measured.HEAD_PARTS
    assert measured.DEEPEST == MAX_DEPTH


def test_a_cache_that_cannot_be_used_is_a_reason(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file in the folder's place")
    found, reason = recall("k", NOW)
    assert found is None
    assert reason is not None
    assert reason.startswith("the cache cannot be read (NotADirectoryError: ")
    problem = keep("k", FOUND)
    assert problem is not None
    assert problem.startswith("it cannot be kept (FileExistsError: ")
    assert measured.count() == 0


def test_a_full_disk_leaves_what_was_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("k", FOUND)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    problem = keep("k", replace(FOUND, threads=None))
    assert problem == "it cannot be kept (OSError: [Errno 28] No space left on device)"
    assert recall("k", NOW)[0] == FOUND
    assert [path.name for path in cache.iterdir()] == ["k.json"]


@pytest.mark.parametrize("depth", [0, 2, None])
def test_a_tuning_is_kept_apart_from_the_measurement(cache: Path, depth: int | None) -> None:
    tuned = Tuned(depth, NOW)
    assert recall_tuned("k", NOW) is None
    assert keep_tuned("k", None) is None
    # Before any measurement, as on a machine that was too busy for one.
    assert keep_tuned("k", tuned) is None
    assert recall_tuned("k", NOW) == tuned
    assert (recall("k", NOW)[0], measured.count()) == (None, 0)
    keep("k", FOUND)
    assert recall("k", NOW) == (replace(FOUND, tuned=tuned), None)
    # A new measurement leaves it.
    keep("k", replace(FOUND, threads=None, tuned=Tuned(9, NOW)))
    assert recall("k", NOW)[0] == replace(FOUND, threads=None, tuned=tuned)
    assert recall_tuned("k", NOW + LONGEST_AGE_S + 1) is None
    assert recall_tuned("other", NOW) is None
    assert keep_tuned("k", None) is None
    assert recall("k", NOW)[0] == replace(FOUND, threads=None)
    assert [path.name for path in cache.iterdir()] == ["k.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"depth": 1}',
        *(
            f'{{"depth": {depth}, "when": {NOW}}}'
            for depth in ('"x"', "17", "-1", "2.7", "2.0", "true", "1e999")
        ),
        '{"depth": 1, "when": 1e999}',
    ],
)
def test_a_damaged_tuning_is_none(cache: Path, text: str) -> None:
    keep("k", FOUND)
    (cache / "k.tuned.json").write_text(text)
    assert recall("k", NOW) == (FOUND, None)
    assert keep_tuned("k", Tuned(1, NOW)) is None
    assert recall_tuned("k", NOW) == Tuned(1, NOW)


def test_a_tuning_that_cannot_be_written_or_removed_is_a_reason(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file in the folder's place")
    assert recall_tuned("k", NOW) is None
    for tuned, start in ((Tuned(1, NOW), "it cannot be kept ("), (None, "it cannot be removed (")):
        problem = keep_tuned("k", tuned)
        assert problem is not None
        assert problem.startswith(start)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": (), "seconds": ()},
        {"tokens": (1, 2)},
        {"tokens": (1, 4, 2)},
        {"tokens": (2, 3, 4)},
        {"seconds": (0.0, 0.1, 0.1)},
        {"seconds": (float("inf"), 0.1, 0.1)},
        {"head": {"first": -1.0, "step": 1.0}},
        {"head": {"first": 1.0}},
        {"tokens": (1,), "seconds": (0.1,)},
    ],
)
def test_what_is_no_measurement_is_none(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"unlike|as many"):
        replace(FOUND, **change)


def test_a_key_is_of_the_models_files_and_not_of_its_place(folder: Path, tmp_path: Path) -> None:
    first = a_key(folder)
    assert first == a_key(folder)
    assert len(first) == 32
    elsewhere = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(folder, elsewhere)
    assert a_key(elsewhere) == first
    (elsewhere / "config.json").write_text('{"model_type": "qwen3"}')
    other = a_key(elsewhere)
    (elsewhere / "model-2.safetensors").write_bytes(b"y")
    bigger = a_key(elsewhere)
    write_manifest(elsewhere, "a source")
    assert len({first, other, bigger, a_key(elsewhere)}) == 4


def test_models_of_one_config_and_size_share_a_key_unless_they_have_a_list_of_files(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "tuned"
    shutil.copytree(folder, other)
    (other / "model.safetensors").write_bytes(b"z" * 100)
    assert a_key(other) == a_key(folder)
    for one in (folder, other):
        write_manifest(one, "a source")
    assert a_key(other) != a_key(folder)


def test_a_key_is_of_the_machine_and_not_of_what_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    first = a_key(folder)
    assert a_key(folder, blas="OpenBLAS 0.3.34 Zen, 1 thread") == first
    others = [
        a_key(folder, blas="OpenBLAS 0.3.34 Haswell, 2 threads"),
        a_key(folder, precision="4-bit, bfloat16"),
        a_key(folder, device="another"),
        a_key(folder, head="distilled-abc"),
    ]
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    others.append(a_key(folder))
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    changes = {
        "available_cpus": lambda: 999,
        "processor": lambda: "another processor",
        "version": lambda name: "0.0.0",
    }
    for name, change in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(measured, name, change)
            others.append(a_key(folder))
    assert len({first, *others}) == 9


def test_the_machine_is_described_in_plain_words() -> None:
    found = measured.machine("cpu", "OpenBLAS 0.3.34 Zen, 12 threads")
    assert found["blas"] == "OpenBLAS 0.3.34 Zen"
    assert found["device"] == "cpu"
    assert found["processor"] == measured.processor() != ""
    assert int(found["cores"]) >= 1
    assert set(found) >= {"mlx", "mlx-lm", "mtplx-kernel", "threads"}


def test_it_needs_no_mlx(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from mtplx_kernel.models import measured as m;"
        f"k = m.key(folder=Path({str(folder)!r}), precision='float32', device='cpu', blas='x');"
        "m.keep(k, m.Measured((1, 2), (0.1, 0.2)));"
        "print(m.recall(k)[0].seconds, 'mlx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(0.1, 0.2) False\n"


@pytest.mark.parametrize("lanes", [LANES, replace(LANES, head={}, position=0.0)])
def test_costs_of_several_rows_come_back(lanes: Lanes) -> None:
    assert recall_lanes("k", NOW) is None
    assert keep_lanes("k", lanes) is None
    assert recall_lanes("k", NOW + LONGEST_AGE_S) == lanes
    assert recall_lanes("k", NOW + LONGEST_AGE_S + 1) is None
    assert recall_lanes("other", NOW) is None


def test_measuring_anew_leaves_the_rest_as_it_was() -> None:
    """One row, several rows and a tuning are kept apart, and count as one."""
    tuned = Tuned(3, when=NOW)
    keep_lanes("k", LANES)
    assert (recall("k", NOW)[0], measured.count()) == (None, 0)
    keep("k", FOUND)
    keep_tuned("k", tuned)
    again = replace(FOUND, seconds=(0.1, 0.2, 0.3))
    keep("k", again)
    assert (recall_lanes("k", NOW), recall_tuned("k", NOW)) == (LANES, tuned)
    keep_lanes("k", replace(LANES, position=0.0))
    assert recall("k", NOW) == (replace(again, tuned=tuned), None)
    assert measured.count() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [2, 4]},
        {"tokens": [1]},
        {"tokens": []},
        {"seconds": {"2": [0.1, 0.2, 0.3]}},
        {"seconds": {"2": [0.1, -0.2]}},
        {"seconds": {"1": [0.1, 0.2]}},
        {"seconds": {"two": [0.1, 0.2]}},
        {"seconds": {"65": [0.1, 0.2]}},
        {"seconds": [0.1, 0.2]},
        {"head": {"2": {"first": 0.1}}},
        {"head": {"2": {"first": 0.1, "step": float("nan")}}},
        {"position": -0.1},
        {"position": None},
        {"when": "today"},
    ],
)
def test_damaged_costs_of_several_rows_are_not_used(change: dict[str, object], cache: Path) -> None:
    keep_lanes("k", LANES)
    good = json.loads((cache / "k.lanes.json").read_text())
    (cache / "k.lanes.json").write_text(json.dumps({**good, **change}))
    assert recall_lanes("k", NOW) is None
