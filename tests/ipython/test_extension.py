"""Loading and unloading: what is put into a shell is taken out, and what was there comes back."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import mtplx_kernel
from mtplx_kernel import extension
from tests.ipython.scripted import ScriptedEngine, new_shell


def state(shell: InteractiveShell) -> dict[str, Any]:
    """Everything that an extension may touch."""
    manager = shell.magics_manager
    return {
        "line": dict(manager.magics["line"]),
        "cell": dict(manager.magics["cell"]),
        "registry": dict(manager.registry),
        "configurables": list(shell.configurables),
        "matchers": list(shell.Completer.custom_matchers),
        "transformers": list(shell.input_transformers_cleanup),
        "hook": shell.display_trap.hook,
        "events": {name: list(found) for name, found in shell.events.callbacks.items()},
        "formatters": {
            kind: dict(formatter.type_printers)
            for kind, formatter in shell.display_formatter.formatters.items()
        },
        "names": {k: v for k, v in shell.user_ns.items() if k not in {"_", "__", "___"}},
        "hidden": dict(shell.user_ns_hidden),
    }


@pytest.fixture
def shell() -> InteractiveShell:
    return new_shell()


def test_unload_restores_the_shell(shell: InteractiveShell) -> None:
    before = state(shell)
    shell.extension_manager.load_extension("mtplx_kernel")
    assert shell.find_line_magic("mtplx") is not None
    assert shell.find_cell_magic("mtplx") is not None
    shell.push({"_mtplx": "a result"}, interactive=False)
    shell.extension_manager.unload_extension("mtplx_kernel")
    assert state(shell) == before


def test_unload_brings_back_what_it_replaced(shell: InteractiveShell) -> None:
    shell.register_magic_function(lambda line: "theirs", "line", "mtplx")
    shell.user_ns["_mtplx"] = "theirs"
    before = state(shell)
    extension.load_ipython_extension(shell)
    shell.user_ns["_mtplx"] = "ours"
    extension.unload_ipython_extension(shell)
    assert state(shell) == before
    assert shell.run_line_magic("mtplx", "") == "theirs"


def test_unload_leaves_what_somebody_put_in_since(shell: InteractiveShell) -> None:
    extension.load_ipython_extension(shell)
    shell.register_magic_function(lambda line: "newer", "line", "mtplx")
    extension.unload_ipython_extension(shell)
    assert shell.run_line_magic("mtplx", "") == "newer"
    assert shell.find_cell_magic("mtplx") is None


def test_loading_twice_and_unloading_twice_is_loading_once(shell: InteractiveShell) -> None:
    before = state(shell)
    extension.load_ipython_extension(shell)
    once = state(shell)
    extension.load_ipython_extension(shell)
    assert state(shell) == once
    extension.unload_ipython_extension(shell)
    extension.unload_ipython_extension(shell)
    assert state(shell) == before


def test_reload_works_again_and_again(shell: InteractiveShell) -> None:
    before = state(shell)
    shell.extension_manager.load_extension("mtplx_kernel")
    once = {name: len(value) for name, value in state(shell).items() if name != "hook"}
    for _ in range(2):
        shell.extension_manager.reload_extension("mtplx_kernel")
        again = {name: len(value) for name, value in state(shell).items() if name != "hook"}
        assert again == once
    shell.extension_manager.unload_extension("mtplx_kernel")
    assert state(shell) == before


def test_the_engine_closes_with_the_last_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = ScriptedEngine()
    holder = extension.EngineHolder(lambda name, **_: engine)
    monkeypatch.setattr(extension, "_engines", holder)
    first, second = new_shell(), new_shell()
    extension.load_ipython_extension(first)
    extension.load_ipython_extension(second)
    first.run_line_magic("mtplx", "load scripted")
    assert mtplx_kernel.current() is engine
    extension.unload_ipython_extension(first)
    assert engine.closes == []
    extension.unload_ipython_extension(second)
    assert engine.closes == [False]
    assert mtplx_kernel.current() is None


def test_quiet_works_in_the_cell_that_loads_the_extension(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine: Any = ScriptedEngine()
    monkeypatch.setattr(extension, "_engines", extension.EngineHolder(lambda name, **_: engine))
    outside = sys.displayhook
    shell.run_cell(
        "%load_ext mtplx_kernel\n%mtplx load scripted\nprint('loaded')\n%mtplx ask --quiet Hi"
    )
    assert capsys.readouterr().out.endswith("loaded\n")
    assert sys.displayhook is outside
    shell.run_cell("%unload_ext mtplx_kernel\nimport sys\nhook = sys.displayhook")
    assert shell.user_ns["hook"] is shell.displayhook
    assert sys.displayhook is outside


def test_load_ext_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from tests.ipython.scripted import new_shell\n"
        "shell = new_shell()\n"
        "shell.run_line_magic('load_ext', 'mtplx_kernel')\n"
        "shell.run_line_magic('mtplx', 'status')\n"
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'numpy', 'matplotlib', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
