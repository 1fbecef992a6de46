"""The views in JupyterLab, on a real kernel and the real model, as a user sees them.

The tests share one notebook, whose kernel loads the model once; each leaves it idle, with all views
live, and the last ones put pictures in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.ui.story import (
    ASK,
    BACK,
    EIGHT,
    LONG,
    OFF,
    PEEK,
    SAID,
    SHOW,
    begin,
    cells,
    parts,
    wait_until_running,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

    from tests.ui.browser import Notebook
    from tests.ui.lab import Lab

WIDE = {"width": 1100, "height": 1000}
NARROW = {"width": 600, "height": 900}
TOKENS = 40
HASH = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.reduce((sum, value, n) => (sum + value * (n % 251)) % 1000003, 0);
}"""


@pytest.fixture(scope="module")
def notebook(chromium: Browser, lab: Lab) -> Iterator[Notebook]:
    """All views live, after one answer; at the end no page must have complained."""
    from tests.ui.browser import Notebook

    lab.write("story.ipynb", cells(TOKENS))
    context = chromium.new_context(viewport=WIDE)
    opened = Notebook(context.new_page(), lab, "story.ipynb")
    begin(opened)
    yield opened
    context.close()
    lab.end_kernels()


def field(notebook: Notebook, label: str) -> Locator:
    """A field of the controls."""
    return notebook.output(SHOW).get_by_label(label, exact=True)


def test_all_views_are_drawn_and_follow_what_runs(notebook: Notebook) -> None:
    views = parts(notebook)
    canvas = views["timeline"].locator("canvas")
    told = views["acceptance"].locator("p.summary")
    before = (canvas.evaluate(HASH), told.inner_text())
    notebook.run(EIGHT, wait=False)
    wait_until_running(notebook, 2)
    during = canvas.evaluate(HASH)
    assert notebook.running(EIGHT)
    assert during != before[0]
    notebook.wait_for_end(EIGHT)
    notebook.page.wait_for_timeout(1500)
    after = (canvas.evaluate(HASH), told.inner_text())
    assert after[0] != during
    assert after[1] != before[1]
    assert told.inner_text().startswith("9 requests, ")
    assert views["acceptance"].locator("svg").count() >= 4
    assert "river" in views["request"].inner_text().lower()
    assert notebook.errors == []


def test_the_controls_switch_the_scheduler_and_follow_a_cell(notebook: Notebook) -> None:
    scheduler = field(notebook, "Scheduler")
    assert scheduler.input_value() == "mtp_batch"
    scheduler.select_option("cooperative")
    field(notebook, "ttft ms").wait_for()  # the settings are those of the new one
    notebook.run(SAID)
    assert "Scheduler:    cooperative" in notebook.text(SAID)
    width = field(notebook, "width")
    width.fill("3")
    width.press("Enter")
    notebook.page.wait_for_timeout(1500)
    notebook.run(SAID)
    assert "width 3" in notebook.text(SAID)
    notebook.run(BACK)
    field(notebook, "prefill cap").wait_for()
    assert (scheduler.input_value(), width.input_value()) == ("mtp_batch", "8")
    assert notebook.errors == []


def test_a_cell_is_interrupted_while_all_is_shown(notebook: Notebook) -> None:
    notebook.run(LONG, wait=False)
    wait_until_running(notebook, 1)
    notebook.command("notebook:interrupt-kernel")
    notebook.wait_for_end(LONG)
    assert "Interrupted after" in notebook.text(LONG)
    assert notebook.errors == []


def test_a_request_is_cancelled_from_the_queue_while_its_cell_runs(notebook: Notebook) -> None:
    notebook.run(LONG, wait=False)
    notebook.output(SHOW).get_by_role("button", name="(decoding)").click()
    notebook.wait_for_end(LONG)
    assert "<cancelled: " in notebook.text(LONG)
    assert notebook.errors == []


def test_the_timeline_is_used_with_the_keyboard_alone(notebook: Notebook) -> None:
    timeline = parts(notebook)["timeline"]
    canvas = timeline.locator("canvas")
    canvas.focus()
    notebook.page.keyboard.press("ArrowDown")
    notebook.page.wait_for_function(
        "() => document.querySelector('.mtplx-timeline p.tells').textContent.startsWith('Pinned')"
    )
    assert "req-1" in timeline.locator("p.tells").inner_text()
    notebook.page.keyboard.press("Escape")
    before = canvas.evaluate(HASH)
    notebook.page.keyboard.press("+")
    notebook.page.wait_for_timeout(300)
    assert canvas.evaluate(HASH) != before
    notebook.page.keyboard.press("End")
    assert timeline.get_by_role("button", name="show all that is remembered").is_visible()
    assert notebook.errors == []


def test_keys_that_are_typed_in_a_view_are_not_the_notebooks(notebook: Notebook) -> None:
    """In JupyterLab `a` and `b` would add a cell, and `d` twice would take one away."""
    cells = notebook.page.locator(".jp-Notebook .jp-Cell")
    before = cells.count()
    for name, part in (
        ("timeline", "button"),
        ("timeline", "canvas"),
        ("acceptance", "svg"),
        ("request", "pre"),
        ("request", "canvas"),
    ):
        focused = parts(notebook)[name].locator(part).first
        focused.focus()
        for key in "aabddm":
            notebook.page.keyboard.press(key)
        assert cells.count() == before, (name, part)
        assert focused.evaluate("(part) => part === document.activeElement"), (name, part)


def test_nothing_reaches_out_of_a_narrow_window(notebook: Notebook) -> None:
    notebook.page.set_viewport_size(NARROW)
    notebook.page.wait_for_timeout(1000)
    assert notebook.wider_than_their_place() == []
    notebook.page.set_viewport_size(WIDE)


def test_a_saved_notebook_shows_pictures_without_a_kernel(
    notebook: Notebook, lab: Lab, chromium: Browser
) -> None:
    from tests.ui.browser import Notebook

    notebook.run(OFF)
    notebook.output(SHOW).locator("img").first.wait_for()
    notebook.page.set_viewport_size(NARROW)
    assert notebook.wider_than_their_place() == []
    notebook.page.set_viewport_size(WIDE)
    notebook.command("docmanager:save")
    notebook.page.wait_for_timeout(1000)
    saved = lab.read("story.ipynb")
    (*views, controls) = saved.cells[SHOW].outputs
    assert [sorted(view.data) for view in views] == [["image/png", "text/html", "text/plain"]] * 3
    assert sorted(controls.data) == ["text/html", "text/plain"]
    # Somebody else's copy: nothing in it may run a script.
    saved.cells[ASK].source = "from elsewhere"
    lab.save("copied.ipynb", saved)
    context = chromium.new_context()
    again = Notebook(context.new_page(), lab, "copied.ipynb")
    images = again.output(SHOW).locator("img")
    images.first.wait_for()
    assert images.count() == 3
    for n in range(3):
        assert images.nth(n).evaluate("(image) => image.naturalWidth") >= 300
    assert "Error displaying widget" not in again.text(SHOW)
    assert again.errors == []
    context.close()


def test_at_rest_a_picture_takes_its_place_and_the_next_run_wakes_it(notebook: Notebook) -> None:
    canvas = notebook.output(PEEK).locator(".mtplx-timeline canvas")
    picture = notebook.output(PEEK).locator("img")
    notebook.run(PEEK)
    for _ in range(2):
        picture.wait_for()
        notebook.run(EIGHT, wait=False)
        canvas.wait_for()
        assert notebook.running(EIGHT)
        notebook.wait_for_end(EIGHT)
    picture.wait_for()
    assert canvas.count() == 0
    assert notebook.errors == []
