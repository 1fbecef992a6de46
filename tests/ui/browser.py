"""A notebook in a browser: run its cells, look at what they show, and at what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from tests.ui.environment import installed_browser
from tests.ui.lab import Lab

ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
READY_MS = 120_000
CELL_MS = 300_000
READY = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  while (!app.shell.currentWidget?.context) await new Promise((next) => setTimeout(next, 100));
  const panel = app.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  while (panel.sessionContext.session?.kernel?.status !== "idle") {
    await new Promise((next) => setTimeout(next, 100));
  }
  app.shell.collapseLeft();
}"""
RUN = """async ([number, wait]) => {
  const app = window.jupyterapp;
  app.shell.currentWidget.content.activeCellIndex = number;
  app.shell.currentWidget.content.deselectAll();
  const done = app.commands.execute("notebook:run-cell");
  if (wait) await done;
}"""
WIDER = """() => [...document.querySelectorAll(".jp-OutputArea-output *")]
  .filter((part) => part.clientWidth > 0 && getComputedStyle(part).display !== "inline")
  .filter((part) => !part.ownerSVGElement)
  .filter((part) => getComputedStyle(part).overflowX === "visible")
  .filter((part) => part.scrollWidth > part.clientWidth + 1 && part.tagName !== "CANVAS")
  .map((part) => `${part.tagName}.${part.getAttribute("class")}: `
    + `${part.scrollWidth} > ${part.clientWidth}`)"""


class NoBrowser(Exception):
    """There is none on this machine; one line says which would do."""


@contextmanager
def browser() -> Iterator[Browser]:
    """A chromium: the machine's own, or the one that playwright has installed.

    Raises
    ------
    NoBrowser
        If there is neither.
    """
    found = installed_browser()
    with sync_playwright() as playwright:
        if found is None and not Path(playwright.chromium.executable_path).exists():
            raise NoBrowser("no chromium is installed: make ui fetches one")
        started = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        try:
            yield started
        finally:
            started.close()


class Notebook:
    """A notebook in a page of its own.

    Parameters
    ----------
    page
        An empty one.
    lab, name
        Where the notebook lies.

    Attributes
    ----------
    errors
        What the page complained of.
    """

    def __init__(self, page: Page, lab: Lab, name: str) -> None:
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(READY_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(lab.address(name))
        page.wait_for_function("() => window.jupyterapp !== undefined")
        page.evaluate(READY)

    def run(self, number: int, *, wait: bool = True) -> None:
        """Run a cell, to its end or only into it."""
        self.page.evaluate(RUN, [number, wait])

    def command(self, name: str) -> None:
        """Do what a menu entry does."""
        self.page.evaluate("(name) => window.jupyterapp.commands.execute(name)", name)

    def running(self, number: int) -> bool:
        """Whether a cell runs or waits for its turn.

        The kernel's status does not tell: what it does for a view meanwhile leaves it idle.
        """
        prompt = self._cell(number).locator(".jp-InputArea-prompt")
        return "*" in prompt.inner_text()

    def wait_for_end(self, number: int) -> None:
        """Wait until a cell has run."""
        prompt = self._cell(number).locator(".jp-InputArea-prompt")
        expect(prompt).not_to_contain_text("*", timeout=CELL_MS)

    def output(self, number: int) -> Locator:
        """What a cell shows."""
        return self._cell(number).locator(".jp-OutputArea")

    def text(self, number: int) -> str:
        """What a cell shows, as text."""
        return "\n".join(self.output(number).all_inner_texts())

    def wider_than_their_place(self) -> list[str]:
        """Parts of outputs that reach out of their place."""
        found: list[Any] = self.page.evaluate(WIDER)
        return [str(part) for part in found]

    def _cell(self, number: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")
