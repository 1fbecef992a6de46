"""A shell with the magics and a scripted engine, and tiny models for real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mtplx_kernel.errors import ModelNotFound
from mtplx_kernel.extension import EngineHolder, Installation, install, remove
from tests.ipython.scripted import ScriptedEngine, new_shell


@dataclass
class Bench:
    """One shell with the extension, what it loads, and what it printed."""

    shell: InteractiveShell
    installation: Installation
    engines: EngineHolder
    loadable: dict[str, Any]
    loads: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def engine(self) -> ScriptedEngine:
        engine: Any = self.engines.current
        assert isinstance(engine, ScriptedEngine)
        return engine

    def run(self, source: str) -> Any:
        """Run a cell as a user would; its value, or the exception it ended with."""
        result = self.shell.run_cell(source, store_history=True)
        return result.error_in_exec or result.error_before_exec or result.result


@pytest.fixture
def bench() -> Iterator[Bench]:
    loads: list[tuple[str, dict[str, Any]]] = []
    loadable: dict[str, Any] = {}

    def load(name: str, **options: Any) -> Any:
        loads.append((name, options))
        found = loadable.get(name)
        if isinstance(found, BaseException):
            raise found
        if found is None:
            raise ModelNotFound(f"there is no model {name!r}")
        return found

    engines = EngineHolder(load)
    shell = new_shell()
    installation = install(shell, engines)
    yield Bench(shell, installation, engines, loadable, loads)
    engines.unload()
    remove(shell, installation)


@pytest.fixture
def loaded(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Bench:
    """A bench on which the scripted engine is loaded."""
    bench.loadable["scripted"] = ScriptedEngine()
    bench.run("%mtplx load scripted")
    capsys.readouterr()
    return bench


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama that never ends by itself, as a folder to load."""
    from tests.tiny import write_endless

    return write_endless(tmp_path_factory.mktemp("models") / "tiny llama")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was printed since the last call, errors after the rest."""

    def read() -> str:
        out, err = capsys.readouterr()
        return out + err

    return read
