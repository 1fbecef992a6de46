"""A model whose answers do not end by themselves, and a cache that no user has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import write_endless


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_endless(tmp_path_factory.mktemp("models") / "endless")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")
