"""The views in JupyterLab, on a real kernel and the real model, as a user sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.ui.story import (
    ASK,
    CELLS,
    EIGHT,
    LOAD,
    LONG,
    OFF,
    SAID,
    SHOW,
    parts,
    wait_for_eight,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

    from tests.ui.browser import Notebook
    from tests.ui.lab import Lab

NARROW = {"width": 600, "height": 900}
HASH = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.reduce((sum, value, n) => (sum + value * (n % 251)) % 1000003, 0);
}"""

Opened = Callable[..., "Notebook"]


@pytest.fixture
def opened(chromium: Browser, lab: Lab, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Open a notebook; at the end kernels are shut down, and no page must have complained."""
    from tests.ui.browser import Notebook

    contexts = []
    notebooks: list[Notebook] = []

    def open_one(cells: list[str] | None, name: str = "", **options: Any) -> Notebook:
        name = name or f"{request.node.name}.ipynb"
        if cells is not None:
            lab.write(name, cells)
        context = chromium.new_context(**options)
        contexts.append(context)
        notebook = Notebook(context.new_page(), lab, name)
        notebooks.append(notebook)
        return notebook

    yield open_one
    complaints = [error for notebook in notebooks for error in notebook.errors]
    for context in contexts:
        context.close()
    lab.end_kernels()
    assert complaints == []


def field(notebook: Notebook, label: str) -> Locator:
    """A field of the controls."""
    return notebook.output(SHOW).get_by_label(label, exact=True)


def test_all_views_are_drawn_and_follow_what_runs(opened: Opened) -> None:
    notebook = opened(CELLS)
    notebook.run(LOAD)
    notebook.run(ASK)
    notebook.run(SHOW)
    views = parts(notebook)
    for view in views.values():
        view.wait_for()
    canvas = views["timeline"].locator("canvas")
    told = views["acceptance"].locator("p.summary")
    before = (canvas.evaluate(HASH), told.inner_text())
    notebook.run(EIGHT, wait=False)
    wait_for_eight(notebook)
    during = (canvas.evaluate(HASH), told.inner_text())
    assert notebook.status() == "busy"
    assert during[0] != before[0]
    notebook.wait_until_idle()
    notebook.page.wait_for_timeout(1500)
    after = (canvas.evaluate(HASH), told.inner_text())
    assert after[0] != during[0]
    assert after[1] != before[1]
    assert views["acceptance"].locator("svg").count() >= 4
    assert "river" in views["request"].inner_text().lower()


def test_the_controls_switch_the_scheduler_and_follow_a_cell(opened: Opened) -> None:
    notebook = opened(CELLS)
    notebook.run(LOAD)
    notebook.run(ASK)
    notebook.run(SHOW)
    scheduler = field(notebook, "Scheduler")
    scheduler.wait_for()
    assert scheduler.input_value() == "mtp_batch"
    scheduler.select_option("cooperative")
    field(notebook, "itl ms").wait_for()  # the settings are those of the new one
    notebook.page.wait_for_function(
        "() => ![...document.querySelectorAll('[role=status]')]"
        ".some((line) => line.textContent.includes('Switching'))"
    )
    notebook.run(SAID)
    assert "Scheduler:    cooperative" in notebook.text(SAID)
    width = field(notebook, "width")
    width.fill("3")
    width.press("Enter")
    notebook.page.wait_for_timeout(1500)
    notebook.run(SAID)
    assert "width 3" in notebook.text(SAID)


def test_a_cell_is_interrupted_while_all_is_shown(opened: Opened) -> None:
    notebook = opened(CELLS)
    notebook.run(LOAD)
    notebook.run(ASK)
    notebook.run(SHOW)
    parts(notebook)["timeline"].wait_for()
    notebook.run(LONG, wait=False)
    notebook.page.wait_for_timeout(1500)
    notebook.command("notebook:interrupt-kernel")
    notebook.wait_until_idle()
    assert "Interrupted after" in notebook.text(LONG)


def test_a_request_is_cancelled_from_the_queue_while_its_cell_runs(opened: Opened) -> None:
    notebook = opened(CELLS)
    notebook.run(LOAD)
    notebook.run(ASK)
    notebook.run(SHOW)
    notebook.run(LONG, wait=False)
    notebook.output(SHOW).get_by_role("button", name="Cancel req-2 (decoding)").click()
    notebook.wait_until_idle()
    assert "<cancelled: " in notebook.text(LONG)


def test_a_saved_notebook_shows_pictures_without_a_kernel(opened: Opened, lab: Lab) -> None:
    notebook = opened(CELLS, "saved.ipynb")
    notebook.run(LOAD)
    notebook.run(ASK)
    notebook.run(SHOW)
    notebook.run(EIGHT)
    notebook.run(OFF)
    notebook.command("docmanager:save")
    notebook.page.wait_for_timeout(1000)
    saved = lab.read("saved.ipynb")
    (*views, controls) = saved.cells[SHOW].outputs
    assert [sorted(view.data) for view in views] == [["image/png", "text/html", "text/plain"]] * 3
    assert sorted(controls.data) == ["text/html", "text/plain"]
    notebook.page.close()
    lab.end_kernels()
    # Somebody else's copy: nothing in it may run a script.
    saved.cells[ASK].source = "from elsewhere"
    lab.save("copied.ipynb", saved)
    again = opened(None, "copied.ipynb")
    images = again.output(SHOW).locator("img")
    images.first.wait_for()
    assert images.count() == 3
    for n in range(3):
        assert images.nth(n).evaluate("(image) => image.naturalWidth") >= 300
    assert "Error displaying widget" not in again.text(SHOW)


def test_at_rest_a_picture_takes_its_place_and_the_next_run_wakes_it(opened: Opened) -> None:
    notebook = opened([CELLS[LOAD], "%mtplx show timeline", *CELLS[EIGHT:]])
    canvas = notebook.output(SHOW).locator(".mtplx-timeline canvas")
    picture = notebook.output(SHOW).locator("img")
    notebook.run(LOAD)
    notebook.run(SHOW)
    for _ in range(2):
        picture.wait_for()
        notebook.run(EIGHT, wait=False)
        canvas.wait_for()
        assert notebook.status() == "busy"
        notebook.wait_until_idle()
    picture.wait_for()
    assert canvas.count() == 0


def test_nothing_reaches_out_of_a_narrow_window(opened: Opened) -> None:
    notebook = opened(CELLS, viewport=NARROW)
    notebook.run(LOAD)
    notebook.run(ASK)
    notebook.run(SHOW)
    notebook.run(EIGHT)
    for view in parts(notebook).values():
        view.wait_for()
    notebook.page.wait_for_timeout(1000)
    assert notebook.wider_than_their_place() == []
    notebook.run(OFF)
    notebook.output(SHOW).locator("img").first.wait_for()
    assert notebook.wider_than_their_place() == []


def test_the_timeline_is_used_with_the_keyboard_alone(opened: Opened) -> None:
    notebook = opened(CELLS)
    notebook.run(LOAD)
    notebook.run(ASK)
    notebook.run(SHOW)
    timeline = parts(notebook)["timeline"]
    timeline.wait_for()
    canvas = timeline.locator("canvas")
    canvas.focus()
    notebook.page.keyboard.press("ArrowDown")
    tells = timeline.locator("p.tells")
    notebook.page.wait_for_function(
        "() => document.querySelector('.mtplx-timeline p.tells').textContent.startsWith('Pinned')"
    )
    assert "req-1" in tells.inner_text()
    notebook.page.keyboard.press("Escape")
    before = canvas.evaluate(HASH)
    notebook.page.keyboard.press("+")
    notebook.page.wait_for_timeout(300)
    assert canvas.evaluate(HASH) != before
    assert timeline.get_by_role("button", name="show all that is remembered").is_visible()
