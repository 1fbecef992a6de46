"""`python -m tests.ui.screens FOLDER`: all views in JupyterLab while eight requests run."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ui.browser import Notebook, browser
from tests.ui.lab import Lab
from tests.ui.story import EIGHT, begin, cells, wait_until_running

WINDOW = {"width": 1100, "height": 1600}
TOKENS = 160
SOME_MS = 4000
"""How long the eight have run when the pictures are taken."""


def take(folder: Path) -> None:
    """Write `view-NAME-light.png` and `view-NAME-dark.png` of each view."""
    with browser() as chromium, TemporaryDirectory() as place:
        for theme in ("light", "dark"):
            with Lab(Path(place) / theme, dark=theme == "dark") as lab:
                lab.write("views.ipynb", cells(TOKENS))
                page = chromium.new_context(viewport=WINDOW, device_scale_factor=2).new_page()
                notebook = Notebook(page, lab, "views.ipynb")
                views = begin(notebook)
                notebook.run(EIGHT, wait=False)
                wait_until_running(notebook, 8)
                page.wait_for_timeout(SOME_MS)
                for name, view in views.items():
                    view.screenshot(path=folder / f"view-{name}-{theme}.png")
                notebook.wait_for_end(EIGHT)


if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
    sys.exit("usage: python -m tests.ui.screens FOLDER")
take(Path(sys.argv[1]))
