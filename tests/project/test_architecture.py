"""The rooms keep their walls: import directions, file sizes, names, declared dependencies."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "mtplx_kernel"
CODE_FOLDERS = (PACKAGE, "widgets", "benchmarks", "notebooks", "docs", "tests")
FOREIGN = Path("tests/conformance/suites")
"""What runs in an environment of its own, with requirements of its own."""
LONGEST_FILE = 400
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}

# What a room may import from the package, beside itself.
CORE = {"caching", "decoding", "engine", "errors", "heads", "models", "scheduling"}
ROOMS = {
    "errors": set[str](),
    "caching": {"errors"},
    "heads": {"caching", "errors"},
    "models": {"caching", "errors", "heads"},
    "decoding": {"caching", "errors", "heads", "models"},
    "scheduling": {"errors"},
    "engine": CORE,
    "training": CORE,
    "checks": {"decoding", "engine", "errors", "models", "report", "scheduling"},
    "client": {"engine", "errors"},
    "server": {"engine", "errors"},
    "widgets": {"engine", "errors"},
}
# The only imports that point up: inside a function, so that nothing is loaded before it is used.
WAYS_UP = {
    "engine/engine.py": {"server"},  # Engine.serve
    "engine/timeline.py": {"widgets"},  # Timeline.plot
}
# Modules directly in the package (magics, client, ...) sit on top and may use every room.
# The engine's public face: all that server and widgets may know of it.
PUBLIC_ENGINE = {"engine.engine", "engine.request", "engine.timeline"}
ENGINE_FREE_OF_MLX = ("scheduling", "errors.py", "options.py", "decoding/params.py")
OWN = {PACKAGE, "widgets", "benchmarks", "tests", "conftest"}
HEAVY = {"llguidance", "matplotlib", "mlx", "mlx_lm", "numpy", "scipy", "transformers"}
OF_ENDPOINTS = {"fastapi", "h11", "httpx", "pydantic", "starlette", "uvicorn"}


def python_files(*folders: str) -> list[Path]:
    found = (p for folder in folders for p in (ROOT / folder).rglob("*.py"))
    return sorted(p for p in found if "node_modules" not in p.parts)


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room they reach into"
            assert node.module is not None
            yield node.module
            # `from mtplx_kernel.engine import request` names a module too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inner_imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, without the package's name."""
    prefix = f"{PACKAGE}."
    return {name.removeprefix(prefix) for name in imported(path) if name.startswith(prefix)}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "widgets" if parts[0] == "widgets" else parts[1]


def place_of(path: Path) -> str:
    """Where a file lies in the package."""
    return path.relative_to(ROOT).as_posix().removeprefix(f"{PACKAGE}/")


def wrong_imports(path: Path) -> set[str]:
    """What a file imports from rooms that its own may not reach, or from the modules on top."""
    room = room_of(path)
    if room not in ROOMS:
        return set()
    on_top = {p.stem for p in (ROOT / PACKAGE).glob("*.py")}
    reached = {name.split(".")[0] for name in inner_imports(path)}
    allowed = ROOMS[room] | WAYS_UP.get(place_of(path), set()) | {room}
    return reached & (set(ROOMS) | on_top) - allowed


def test_imports_point_one_way() -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in python_files(PACKAGE, "widgets")
        if (found := wrong_imports(path))
    }
    assert wrong == {}


def test_the_walls_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    room = tmp_path / PACKAGE / "scheduling"
    room.mkdir(parents=True)
    bad = room / "serial.py"
    bad.write_text("def f():\n    from mtplx_kernel.decoding import step\n")
    assert wrong_imports(bad) == {"decoding"}
    bad.write_text("from mtplx_kernel.errors import QueueFull\n")
    assert wrong_imports(bad) == set()


def test_ways_up_are_taken_on_use_only() -> None:
    for place, rooms in WAYS_UP.items():
        path = ROOT / PACKAGE / place
        at_import = [
            n.module for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)
        ]
        reached = {module.split(".")[1] for module in at_import if module and "." in module}
        assert not reached & rooms, path
        assert rooms <= {name.split(".")[0] for name in inner_imports(path)}, "it is taken"


def test_server_and_widgets_know_only_the_engines_public_face() -> None:
    for path in python_files("widgets", f"{PACKAGE}/server"):
        reached = {name for name in inner_imports(path) if name.startswith("engine.")}
        modules = {".".join(name.split(".")[:2]) for name in reached}
        assert modules <= PUBLIC_ENGINE, path


def test_scheduling_and_plain_data_import_no_array_library() -> None:
    for place in ENGINE_FREE_OF_MLX:
        target = ROOT / PACKAGE / place
        for path in [target] if target.suffix else sorted(target.rglob("*.py")):
            assert not {name.split(".")[0] for name in imported(path)} & HEAVY, path


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        f"import sys, {PACKAGE}, {PACKAGE}.widgets; dir({PACKAGE});"
        f"print(sorted({HEAVY | OF_ENDPOINTS!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_file_is_longer_than_it_should_be() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in python_files(*CODE_FOLDERS)}
    assert {p for p, n in lengths.items() if n > LONGEST_FILE} == set()


def test_names_say_the_thing() -> None:
    named = [part for p in python_files(*CODE_FOLDERS) for part in p.relative_to(ROOT).parts]
    words = {w for name in named for w in re.split(r"[_.]", name)}
    assert words & FORBIDDEN_NAMES == set()


def test_every_module_says_what_it_is_for_in_its_first_line() -> None:
    for path in python_files(*CODE_FOLDERS):
        if not path.read_text():
            continue
        doc = ast.get_docstring(ast.parse(path.read_text()))
        first = doc.splitlines()[0] if doc else ""
        assert len(first) > 20, path
        assert first.rstrip().endswith((".", ";", ":", ",")), path


def declared(*extras: str) -> set[str]:
    """Distribution names that pyproject.toml lists, normalised."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return {normalised(re.split(r"[\[<>=!;~ ]", line)[0]) for line in lines}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def makes_fixtures(path: Path) -> bool:
    """Whether a file of the tests is a script, which no test imports.

    Those make fixtures, each in an environment of its own, which its first lines describe.
    """
    guards = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.If)]
    runs = any(ast.unparse(guard.test) == "__name__ == '__main__'" for guard in guards)
    return runs and path.is_relative_to(ROOT / "tests")


def used(*folders: str) -> dict[str, set[str]]:
    """Map each foreign module that files in some folders import to who brings it.

    Scripts that make fixtures are left out, and what runs in an environment of its own.
    """
    owners = packages_distributions()
    files = [p for p in python_files(*folders) if not makes_fixtures(p)]
    files = [p for p in files if not p.is_relative_to(ROOT / FOREIGN)]
    names = {n.split(".")[0] for p in files for n in imported(p)}
    return {n: {normalised(owner) for owner in owners[n]} for n in names & owners.keys() - OWN}


def test_what_the_package_imports_is_declared() -> None:
    allowed = declared("cpu")
    assert {n for n, owners in used(PACKAGE, "widgets").items() if not owners & allowed} == set()


def test_what_tests_and_notebooks_import_is_declared() -> None:
    allowed = declared("cpu", "dev")
    assert {n for n, owners in used(*CODE_FOLDERS).items() if not owners & allowed} == set()


def test_scripts_that_make_fixtures_stand_apart() -> None:
    scripts = [
        p for p in python_files("tests") if makes_fixtures(p) and "conformance" not in p.parts
    ]
    assert [str(p.relative_to(ROOT)) for p in scripts] == [
        "tests/heads/fixtures/make.py",
        "tests/heads/oracle/against_transformers.py",
    ]
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in scripts}
    assert not modules & {name for p in python_files("tests") for name in imported(p)}
    for path in scripts:
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert "in an environment" in " ".join(doc.split()), path


def test_what_is_declared_is_used() -> None:
    brought = {owner for owners in used(PACKAGE, "widgets").values() for owner in owners}
    assert declared() - brought == set()
