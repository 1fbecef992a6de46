"""The notebook that the tests of the views, and their pictures, run."""

from __future__ import annotations

from collections.abc import Sequence
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
LOAD, SHOW, EIGHT, LONG, ASK, PEEK, SAID, BACK, OFF = range(9)


def cells(max_tokens: int, prompts: Sequence[str] = PROMPTS) -> list[str]:
    """The notebook's cells, by the numbers above; so long may the answers to the eight be."""
    eight = "\n---\n".join(prompts)
    return [
        "%load_ext mtplx_kernel\n%mtplx load smollm2-135m --scheduler mtp_batch --width 8",
        "%mtplx show all --live",
        f"%%mtplx --batch --quiet --max-tokens {max_tokens}\n{eight}",
        "%%mtplx --max-tokens 4000\nWrite a very long story about a lighthouse.",
        "%mtplx ask --quiet --max-tokens 24 Name a river.",
        "%mtplx show timeline",
        "%mtplx scheduler",
        "%mtplx scheduler mtp_batch --width 8",
        "%mtplx show off",
    ]


def begin(notebook: Notebook) -> dict[str, Locator]:
    """Load, ask once, show all, and wait for the four views."""
    for cell in (LOAD, ASK, SHOW):
        notebook.run(cell)
    views = parts(notebook)
    for view in views.values():
        view.wait_for()
    return views


def parts(notebook: Notebook) -> dict[str, Locator]:
    """The roots of the four views."""
    shown = notebook.output(SHOW)
    return {
        "timeline": shown.locator(".mtplx-timeline"),
        "acceptance": shown.locator(".mtplx-acceptance"),
        "request": shown.locator(".mtplx-inspector"),
        "controls": shown.locator(".widget-vbox").first,
    }


def wait_until_running(notebook: Notebook, least: int) -> None:
    """Wait until so many requests run, as the timeline says."""
    notebook.page.wait_for_function(
        "(least) => Number(document.querySelector('.mtplx-timeline p.tells').textContent"
        r".match(/(\d+) running/)?.[1] ?? 0) >= least",
        arg=least,
    )
