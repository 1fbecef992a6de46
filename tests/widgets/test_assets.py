"""The scripts and styles that the views send: whole, in order, and without a clash of names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mtplx_kernel.widgets import assets
from mtplx_kernel.widgets.assets import script, style

VIEWS = ("timeline", "acceptance", "inspector")
NAMES = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", re.MULTILINE)


def test_what_a_module_imports_stands_in_front_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "base.js": "export const one = 1;\n",
        "middle.js": 'import { one } from "./base.js";\n\nexport const two = 2 * one;\n',
        "top.js": 'import { one } from "./base.js";\nimport {\n  two,\n} from "./middle.js";\n'
        "export default one + two;\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(assets, "FOLDER", tmp_path)
    assert script("top.js") == (
        "export const one = 1;\n\n\nexport const two = 2 * one;\n\nexport default one + two;\n"
    )


@pytest.mark.parametrize("view", VIEWS)
def test_a_script_needs_nothing_else_and_names_nothing_twice(view: str) -> None:
    text = script(f"{view}.js")
    assert "import " not in text
    assert text.count("export default ") == 1
    names = NAMES.findall(text)
    assert len(names) == len(set(names))
    assert "export function render" not in text, "anywidget warns of it"
    assert "HTML" not in text, "what models and clients say is text"


@pytest.mark.parametrize("view", VIEWS)
def test_a_style_is_that_of_the_views_and_touches_nothing_else(view: str) -> None:
    text = style(f"{view}.css")
    rules = re.sub(r"/\*.*?\*/", "", text)
    selectors = [part for rule in re.findall(r"([^{}]+)\{", rules) for part in rule.split(",")]
    assert all(".mtplx" in selector for selector in selectors)
    assert f".mtplx-{view} " in text
    assert "url(" not in text
    assert "@import" not in text


def test_every_script_and_style_belongs_to_a_view() -> None:
    scripts = "".join(script(f"{view}.js") for view in VIEWS)
    for file in assets.FOLDER.glob("*.js"):
        assert file.read_text(encoding="utf-8").splitlines()[0] in scripts, file.name
    styles = {f"{view}.css" for view in VIEWS} | {"page.css"}
    assert {file.name for file in assets.FOLDER.glob("*.css")} == styles
