"""Conversions that do not work out: one line says why, and nothing half-made is left behind."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import pytest

from mtplx_kernel.errors import InvalidRequest, ModelUnusable
from mtplx_kernel.models.catalog import cache_dir
from tests.models.original import converted, write


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    return {kind: write(kind, folder / kind) for kind in ("llama", "qwen3_next")}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits is 3; allowed are 4, 6 and 8, or none to quantise nothing"),
        (
            {"head_bits": 2},
            "head_bits is 2; allowed are 4, 6 and 8, or 16 to keep the head's precision",
        ),
        ({"bits": 4, "group_size": 48}, "group_size is 48; allowed are 32, 64 and 128"),
        (
            {"bits": 4, "group_size": 128},
            "qwen3_next cannot be quantised in groups of 128: no layer's width is a multiple of"
            " that; try another of 32, 64 and 128",
        ),
    ],
)
def test_options_that_are_not_offered(
    sources: dict[str, Path], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        converted(sources["qwen3_next"], tmp_path / "made", **options)
    assert str(error.value) == message
    assert os.listdir(tmp_path) == []


def test_a_destination_that_holds_something_is_refused(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    (tmp_path / "file").write_text("keep me")
    for name in ("full", "file"):
        with pytest.raises(InvalidRequest) as error:
            converted(sources["llama"], tmp_path / name)
        assert str(error.value) == (
            f"{tmp_path / name} exists and is not an empty folder; name a new one or remove it"
            " first"
        )
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep me"
    (tmp_path / "empty").mkdir()
    converted(sources["llama"], tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_a_disk_without_room_is_refused_before_any_work(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**7))
    with pytest.raises(ModelUnusable) as error:
        converted(sources["llama"], tmp_path / "made")
    assert str(error.value) == (
        f"the converted model takes 0.00 GB and {tmp_path} has 0.01 GB free; make room or choose"
        " another disk"
    )
    assert os.listdir(tmp_path) == []


def run_child(source: Path, made: Path, before: str) -> subprocess.CompletedProcess[str]:
    """Convert in a process of its own, after some preparation."""
    code = (
        "import mlx.core as mx; mx.set_default_device(mx.cpu)\n"
        "from pathlib import Path\n"
        "from mtplx_kernel.models import convert, writing\n"
        f"{before}\n"
        f"convert.convert({str(source)!r}, Path({str(made)!r}), bits=4, group_size=32)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_a_disk_that_fills_up_leaves_nothing(sources: dict[str, Path], tmp_path: Path) -> None:
    # A limit on the size of files makes the system refuse the write, as a full disk does.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))"
    done = run_child(sources["qwen3_next"], tmp_path / "made", limit)
    last = done.stderr.strip().splitlines()[-1]
    assert re.fullmatch(
        r"mtplx_kernel\.errors\.ModelUnusable: \S*/made could not be made: \[write\] Unable to"
        r" write \d+ bytes to file\.; nothing of it was kept, check the room on that disk and the"
        r" source, or choose another folder",
        last,
    ), last
    assert os.listdir(tmp_path) == []


def test_an_interrupt_leaves_nothing(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mtplx_kernel.models.convert.write_card", interrupt)
    with pytest.raises(KeyboardInterrupt):
        converted(sources["qwen3_next"], tmp_path / "made")
    assert os.listdir(tmp_path) == []


def test_a_kill_leaves_nothing_that_looks_whole_and_the_next_run_sweeps_it(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    kill = "import os, signal\nconvert.write_card = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    done = run_child(sources["qwen3_next"], tmp_path / "made", kill)
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [".made.unfinished"]
    assert "mtp.safetensors" in os.listdir(tmp_path / ".made.unfinished")
    assert "config.json" not in os.listdir(tmp_path / ".made.unfinished")
    converted(sources["qwen3_next"], tmp_path / "made")
    assert os.listdir(tmp_path) == ["made"]


def test_two_at_once_do_not_meet_in_one_folder(sources: dict[str, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    name = hashlib.sha256(os.fsencode(made)).hexdigest()[:16]
    (cache_dir() / "locks").mkdir(parents=True, exist_ok=True)
    with (
        filelock.FileLock(cache_dir() / "locks" / name),
        pytest.raises(InvalidRequest, match="is being written by another process; wait for it"),
    ):
        converted(sources["llama"], made)
    assert os.listdir(tmp_path) == []


def test_a_source_that_is_no_model(sources: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(sources["llama"], broken)
    weights = sorted(broken.glob("model*.safetensors"))[1]
    weights.write_bytes(weights.read_bytes()[:-40_000])
    with pytest.raises(ModelUnusable, match=r"broken .*|.*broken.*"):
        converted(broken, tmp_path / "made")
    weights.unlink()
    with pytest.raises(ModelUnusable, match=r"broken cannot be converted: Missing \d+ parameters"):
        converted(broken, tmp_path / "made")
    assert os.listdir(tmp_path) == ["broken"]
