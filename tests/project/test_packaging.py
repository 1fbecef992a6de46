"""What is published: dependency lists that agree, and a wheel that holds every room."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("mtplx_kernel", "widgets", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def environment() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text())
    return loaded


def test_environment_pip_block_equals_the_lists_of_pyproject(
    pyproject: dict[str, Any], environment: dict[str, Any]
) -> None:
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    (block,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    assert block == [*project["dependencies"], *extras["cpu"], *extras["dev"], "--editable ."]


def test_environment_takes_conda_forge_first_and_openblas(environment: dict[str, Any]) -> None:
    assert environment["channels"][0] == "conda-forge"
    conda = [part for part in environment["dependencies"] if isinstance(part, str)]
    assert conda == ["python>=3.11", "libopenblas", "pip"]


def test_mlx_is_pinned_to_one_version_everywhere(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    assert {"mlx==0.32.4", "mlx-lm==0.32.2"} <= set(project["dependencies"])
    for extra in ("cpu", "cuda12", "cuda13"):
        (backend,) = [line for line in extras[extra] if line.startswith("mlx[")]
        assert backend == f"mlx[{extra}]==0.32.4; platform_system == 'Linux'"


def test_packages_of_pyproject_are_the_folders(pyproject: dict[str, Any]) -> None:
    folders = {p.parent for p in (ROOT / "mtplx_kernel").rglob("__init__.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    listed = pyproject["tool"]["setuptools"]["packages"]
    assert sorted(names | {"mtplx_kernel", "mtplx_kernel.widgets"}) == listed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that no build folder appears in the checkout."""
    copy = tmp_path_factory.mktemp("sources")
    listed = subprocess.run(
        ["tar", "-cf", "-", "--exclude=__pycache__", *SOURCES], cwd=ROOT, capture_output=True
    )
    subprocess.run(["tar", "-xf", "-"], cwd=copy, input=listed.stdout, check=True)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--no-index", "--quiet", "--wheel-dir", str(out), str(copy)], check=True
    )
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_every_module_and_the_widgets(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mtplx_kernel").rglob("*.py")}
    views = {f"mtplx_kernel/{p.relative_to(ROOT)}" for p in (ROOT / "widgets").glob("*.py")}
    assert "mtplx_kernel/widgets/__init__.py" in views
    assert {n for n in names if n.endswith(".py")} == sources | views
    for kind in (".js", ".css"):
        files = {f"mtplx_kernel/{p.relative_to(ROOT)}" for p in (ROOT / "widgets").glob(f"*{kind}")}
        assert f"mtplx_kernel/widgets/timeline{kind}" in files
        assert {n for n in names if n.endswith(kind)} == files
    assert "mtplx_kernel/py.typed" in names


def test_wheel_metadata_names_licence_and_extras(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
    lines = archive.read(name).decode().splitlines()
    assert "License-Expression: Apache-2.0" in lines
    assert "Requires-Python: >=3.11" in lines
    extras = [line.removeprefix("Provides-Extra: ") for line in lines if "Provides-Extra" in line]
    assert extras == ["cpu", "cuda12", "cuda13", "dev"]
