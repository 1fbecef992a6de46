"""The pages tell the truth: snippets run, links lead somewhere, commands exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
import yaml
from demo import PLACES
from nbclient import NotebookClient

from mtplx_kernel.cli import COMMANDS
from mtplx_kernel.grammar import read_options

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CELLS = ("python", "ipython")
SHOWN = ("text", "json")
"""What a page only shows: output, tables, file contents."""
PAGE_LIMIT_S = 300


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page."""

    page: str
    language: str
    text: str


def snippets(page: Path, *languages: str) -> list[Snippet]:
    found = [Snippet(page.name, *match.groups()) for match in FENCE.finditer(page.read_text())]
    return [s for s in found if not languages or s.language in languages]


def cells(page: Path) -> list[str]:
    """A page's snippets as notebook cells; a line that starts with %% begins a new one."""
    parts = [re.split(r"^(?=%%)", s.text, flags=re.MULTILINE) for s in snippets(page, *CELLS)]
    return [cell.strip("\n") for part in parts for cell in part if cell.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_fence_names_its_language(page: Path) -> None:
    assert {s.language for s in snippets(page)} <= {"bash", *CELLS, *SHOWN}
    assert page.read_text().count("```") == 2 * len(snippets(page))


@pytest.mark.parametrize("page", [p for p in PAGES if cells(p)], ids=lambda p: p.name)
def test_snippets_of_a_page_run_in_one_kernel(page: Path, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells(page)]
    )
    client = NotebookClient(
        notebook,
        timeout=PAGE_LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    # The tests' own process computes with the plain BLAS; a reader's kernel does not.
    plain = {"MTPLX_KERNEL_BLAS": None, "JUPYTER_PREFER_ENV_PATH": "1"}
    client.execute(env={k: v for k, v in {**os.environ, **plain}.items() if v is not None})
    texts = [out.get("text", "") for cell in notebook.cells for out in cell.outputs]
    assert not [text for text in texts if "UsageError" in text]


def commands() -> list[tuple[str, list[str]]]:
    lines = [
        (snippet.page, line)
        for page in PAGES
        for snippet in snippets(page, "bash")
        for line in snippet.text.splitlines()
    ]
    return [(page, words) for page, line in lines if (words := shlex.split(line, comments=True))]


def check_make(words: list[str]) -> None:
    # Not run: these tests are a part of `make test`, and set-up is tested in test_setup.py.
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert (f"$({name})" in makefile) if is_variable else (name in phony.split()), word


def check_pip(words: list[str]) -> None:
    # Not run: it would change the environment that the tests run in.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    command, *options, target = words
    match = re.fullmatch(r"\.(?:\[([\w,]+)\])?", target)
    assert command == "install"
    assert set(options) <= {"-e", "--editable"}
    assert match is not None, target
    assert set((match[1] or "").split(",")) - {""} <= set(extras)


def check_conda(words: list[str]) -> None:
    # Not run: conda is not among what a test machine must have.
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    allowed = (["env", "create", "-f", "environment.yml"], ["activate", environment["name"]])
    assert words in allowed


def check_python(words: list[str]) -> None:
    # Only the help is run: a benchmark takes minutes and belongs on a quiet machine.
    assert words[0] == "-m"
    known = [word for word in words[2:] if word.startswith("--")]
    done = subprocess.run(
        [sys.executable, "-m", words[1], "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not [option for option in known if option.split("=")[0] not in done.stdout]


def check_command_line(words: list[str]) -> None:
    # Only read: the commands fetch models and take minutes.
    command, *rest = words
    given, plain = read_options(COMMANDS[command].verb.options, rest)
    assert 0 <= len(plain) - COMMANDS[command].words <= COMMANDS[command].more
    assert all(value not in ("", None) for value in given.values())


CHECKS = {
    "make": check_make,
    "pip": check_pip,
    "conda": check_conda,
    "python": check_python,
    "mtplx-kernel": check_command_line,
}


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda v: str(v))
def test_shell_commands_exist(page: str, words: list[str]) -> None:
    program = words[0]
    assert program in CHECKS, f"{page}: no check for {program}; add one, or fence it as text"
    CHECKS[program](words[1:])


def anchors(page: Path) -> set[str]:
    """The anchors that headings make, as GitHub spells them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    for link in LINK.findall(prose):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_index_lists_every_page() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "index.md").read_text()))
    assert {p.name for p in (ROOT / "docs").glob("*.md")} - listed == {"index.md"}


def test_no_page_names_this_machines_folders() -> None:
    for page in PAGES:
        assert not [place for place in PLACES if place in page.read_text()]
