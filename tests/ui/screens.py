"""Takes pictures of all views in JupyterLab while eight requests run, light and dark."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ui.browser import Notebook, browser
from tests.ui.lab import Lab
from tests.ui.story import EIGHT, begin, cells, wait_until_running

WINDOW = {"width": 1100, "height": 1600}
TOKENS = 160
LONG_ANSWERS = (
    "Write a long story about a lighthouse.",
    "Explain how bread is made, step by step.",
    "Write a Python class for a bank account, with comments.",
    "Describe the seasons of the year in four paragraphs.",
    "Count from one to fifty in words.",
    "Write a letter to a friend about a long journey.",
    "List twenty animals, with a sentence about each.",
    "Explain the water cycle to a child, in detail.",
)
SOME_MS = 4000
"""How long the eight have run when the pictures are taken."""


def take(folder: Path) -> None:
    """Write `view-NAME-light.png` and `view-NAME-dark.png` of each view."""
    with browser() as chromium, TemporaryDirectory() as place:
        for theme in ("light", "dark"):
            with Lab(Path(place) / theme, dark=theme == "dark") as lab:
                lab.write("views.ipynb", cells(TOKENS, LONG_ANSWERS))
                page = chromium.new_context(viewport=WINDOW, device_scale_factor=2).new_page()
                notebook = Notebook(page, lab, "views.ipynb")
                views = begin(notebook)
                notebook.run(EIGHT, wait=False)
                wait_until_running(notebook, 8)
                page.wait_for_timeout(SOME_MS)
                for name, view in views.items():
                    view.screenshot(path=folder / f"view-{name}-{theme}.png")
                notebook.wait_for_end(EIGHT)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.ui.screens", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go; it must exist")
    chosen = parser.parse_args()
    if not chosen.folder.is_dir():
        parser.error(f"{chosen.folder} is no folder")
    take(chosen.folder)


main()
