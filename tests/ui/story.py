"""The notebook that the tests of the views, and their pictures, run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.ui.browser import Notebook

PROMPTS = (
    "Name three fruits.",
    "Write a line about the sea.",
    "Count from one to ten.",
    "What is the capital of France?",
    "Say hello in five languages.",
    "Repeat these words: red, blue, green, red, blue, green.",
    "List the days of the week twice.",
    "Explain rain in one sentence.",
)
LOAD, SHOW, EIGHT, LONG, ASK, OFF, SAID = range(7)
CELLS = [
    "%load_ext mtplx_kernel\n%mtplx load smollm2-135m --scheduler mtp_batch --width 8",
    "%mtplx show all --live",
    "%%mtplx --batch --quiet --max-tokens 160\n" + "\n---\n".join(PROMPTS),
    "%%mtplx --max-tokens 4000\nWrite a very long story about a lighthouse.",
    "%mtplx ask --quiet --max-tokens 24 Name a river.",
    "%mtplx show off",
    "%mtplx scheduler",
]


def parts(notebook: Notebook) -> dict[str, Locator]:
    """The roots of the four views."""
    shown = notebook.output(SHOW)
    return {
        "timeline": shown.locator(".mtplx-timeline"),
        "acceptance": shown.locator(".mtplx-acceptance"),
        "request": shown.locator(".mtplx-inspector"),
        "controls": shown.locator(".widget-vbox").first,
    }


def wait_for_eight(notebook: Notebook) -> None:
    """Wait until all prompts of a batch run, as the timeline says."""
    notebook.page.wait_for_function(
        "() => document.querySelector('.mtplx-timeline p.tells').textContent.includes('8 running')"
    )
