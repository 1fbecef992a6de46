"""A tiny model with an application before it, and engines of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.engine import Engine
from tests.server.site import MODEL, Site
from tests.tiny import write

CONTEXT = 20_000


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with room for long requests."""
    folder = tmp_path_factory.mktemp("served") / MODEL
    return write("llama", folder, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def served(served_folder: Path) -> Iterator[Engine]:
    with mk.load(str(served_folder)) as engine:
        yield engine


@pytest.fixture(scope="session")
def shared_site(served: Engine) -> Iterator[Site]:
    with Site(served) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """The application that all tests share; each must leave nothing running."""
    yield shared_site
    status = shared_site.engine.status()
    assert (status["state"], status["running"], status["queue"]["waiting"]) == ("running", 0, 0)


@pytest.fixture
def open_site(served_folder: Path) -> Iterator[Callable[..., Site]]:
    """Applications over engines of the test's own, closed at its end."""
    opened: list[Site] = []

    def start(**options: Any) -> Site:
        site = Site(mk.load(str(served_folder), **options)).__enter__()
        opened.append(site)
        return site

    yield start
    for site in opened:
        site.engine.close()
        site.__exit__(None, None, None)
