"""Tiny models as folders, and engines on them that must still work after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.engine import Engine
from tests.engine.gates import PATIENCE_S
from tests.tiny import write

PROBE = [72, 101, 108, 108, 111]
CONTEXT = 20_000

Start = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with room for long requests."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    return write("llama", folder, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another family, without a chat template and with a context of 512."""
    return write("gemma3", tmp_path_factory.mktemp("models") / "tiny-gemma", chat=False)


@pytest.fixture(scope="session")
def shared_engine(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder)) as engine:
        yield engine


@pytest.fixture(scope="session")
def probe_ids(shared_engine: Engine) -> tuple[int, ...]:
    """What the tiny llama says after `PROBE` when nothing has gone wrong yet."""
    return shared_engine.generate(PROBE, max_tokens=12).token_ids


@pytest.fixture
def still_works(probe_ids: tuple[int, ...]) -> Callable[[Engine], None]:
    """Check that nothing is left running and that the answer is the same as ever."""

    def check(engine: Engine) -> None:
        found = engine.generate(PROBE, max_tokens=12, timeout=PATIENCE_S)
        assert found.token_ids == probe_ids
        status = engine.status()
        assert (status["state"], status["running"], status["queue"]["waiting"]) == ("running", 0, 0)

    return check


@pytest.fixture
def engine(shared_engine: Engine, still_works: Callable[[Engine], None]) -> Iterator[Engine]:
    """The engine that all tests share; each must leave it usable."""
    yield shared_engine
    still_works(shared_engine)


@pytest.fixture
def start(tiny_folder: Path) -> Iterator[Start]:
    """Load engines of the test's own, closed at its end."""
    started: list[Engine] = []

    def load(folder: Path = tiny_folder, **options: Any) -> Engine:
        started.append(mk.load(str(folder), **options))
        return started[-1]

    yield load
    for each in started:
        each.close()
