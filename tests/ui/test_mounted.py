"""Each view by itself in a real browser: what a document without one cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.mounted import Mounted

VIEWS = ("timeline", "acceptance", "inspector")
PIXELS = "(canvas) => canvas.toDataURL()"
FOCUSED = """() => {
  const part = document.activeElement;
  const style = getComputedStyle(part);
  const own = part.hasAttribute("data-lm-suppress-shortcuts");
  return [part.tagName, own, part.closest(".mtplx") !== null && style.outlineStyle !== "none"];
}"""

Show = Callable[..., "Mounted"]


def values_of(name: str, count: int = 12) -> dict[str, Any]:
    from tests.ui.samples import acceptance_values, inspector_values, many, timeline_values

    if name == "inspector":
        return inspector_values(count)
    return {"timeline": timeline_values, "acceptance": acceptance_values}[name](many(count))


@pytest.fixture
def show(chromium: Browser) -> Iterator[Show]:
    """Show a view; at the end no page must have complained."""
    from tests.ui.mounted import Mounted

    made: list[Mounted] = []

    def one(name: str, count: int = 12, **options: Any) -> Mounted:
        made.append(Mounted(chromium, name, values_of(name, count), **options))
        return made[-1]

    yield one
    complaints = [words for mounted in made for words in mounted.complaints]
    for mounted in made:
        mounted.close()
    assert complaints == []


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("width", [320, 600, 1400])
def test_nothing_reaches_out_of_the_window(show: Show, name: str, width: int) -> None:
    view = show(name, 400, viewport={"width": width, "height": 700})
    assert view.root.bounding_box() is not None
    assert view.wider_than_the_window() == []


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_theme_of_its_page_also_when_that_changes(show: Show, name: str) -> None:
    view = show(name)
    ground = "(root) => getComputedStyle(root).backgroundColor"
    canvas = view.root.locator("canvas")
    light = [one.evaluate(PIXELS) for one in canvas.all()]
    assert view.root.evaluate(ground) == "rgb(255, 255, 255)"
    view.theme(dark=True)
    assert view.root.evaluate(ground) == "rgb(22, 25, 29)"
    dark = [one.evaluate(PIXELS) for one in canvas.all()]
    assert all(one != other for one, other in zip(light, dark, strict=True))
    view.theme(dark=False)
    assert [one.evaluate(PIXELS) for one in canvas.all()] == light


@pytest.mark.parametrize("name", ["timeline", "inspector"])
def test_a_canvas_is_as_sharp_as_the_screen(show: Show, name: str) -> None:
    view = show(name, device_scale_factor=2)
    canvas = view.root.locator("canvas")
    sharp = "(canvas) => canvas.width / canvas.clientWidth"
    assert canvas.evaluate(sharp) == 2
    # As when the page is zoomed: the window has fewer pixels, each of more of the screen's.
    devtools = view.page.context.new_cdp_session(view.page)
    zoomed = {"width": 800, "height": 400, "deviceScaleFactor": 3, "mobile": False}
    devtools.send("Emulation.setDeviceMetricsOverride", zoomed)
    view.page.wait_for_function("() => innerWidth === 800")
    view.settle()
    assert canvas.evaluate(sharp) == 3


@pytest.mark.parametrize("name", VIEWS)
def test_what_has_the_focus_can_be_seen_and_keeps_its_keys(show: Show, name: str) -> None:
    view = show(name)
    seen = []
    while True:
        view.press("Tab")
        tag, own, visible = view.page.evaluate(FOCUSED)
        if tag == "BODY":
            break
        assert visible, tag
        assert own, f"JupyterLab would take the keys that are typed in the {tag}"
        seen.append(tag)
    assert (
        seen
        == {
            "timeline": ["BUTTON"] * 4 + ["CANVAS"],
            "acceptance": ["svg"] * 5,
            "inspector": ["BUTTON", "PRE", "CANVAS"],
        }[name]
    )


@pytest.mark.parametrize("name", VIEWS)
def test_keys_that_a_view_takes_stop_at_it(show: Show, name: str) -> None:
    view = show(name)
    view.page.evaluate(
        "() => { window.keys = []; addEventListener('keydown', (event) =>"
        " window.keys.push(event.key)) }"
    )
    view.root.locator("[tabindex]").last.focus()
    view.press("ArrowRight", "ArrowLeft", "ArrowDown", "x")
    assert view.page.evaluate("() => window.keys") == ["x"]
    assert view.root.get_attribute("data-lm-suppress-shortcuts") == "true"


def test_the_wheel_scrolls_the_page_until_the_chart_is_clicked(show: Show) -> None:
    view = show("timeline")
    canvas = view.root.locator("canvas")
    canvas.hover()
    view.page.mouse.wheel(0, 100)
    view.page.wait_for_function("() => scrollY === 100")
    canvas.click(position={"x": 300, "y": 20})
    view.page.evaluate("() => scrollTo(0, 60)")
    before = canvas.evaluate(PIXELS)
    view.page.mouse.wheel(0, -100)
    view.page.wait_for_function("() => window.model.values.held")
    view.settle()
    assert (view.scrolled, canvas.evaluate(PIXELS) == before) == (60, False)
    view.press("Home", "Escape")
    view.page.mouse.wheel(0, -100)
    view.page.wait_for_function("() => scrollY === 0")


def test_a_request_is_pointed_at_pinned_and_let_go(show: Show) -> None:
    view = show("timeline")
    canvas, tells = view.root.locator("canvas"), view.root.locator(".tells")
    row = {"x": 300.0, "y": 64 + 1.5 * 25}
    canvas.hover(position=row)
    view.settle()
    assert tells.inner_text().startswith("req-1 · slot 0: submitted at 0.00 s · ")
    canvas.click(position=row)
    view.settle()
    assert (tells.inner_text()[:16], view.held) == ("Pinned: req-1 · ", True)
    view.press("Escape")
    assert not view.held


def test_copied_text_is_the_answer_to_the_letter(show: Show) -> None:
    from tests.ui.samples import ANSWER

    view = show("inspector", 1)
    clipboard = "() => navigator.clipboard.readText()"
    view.root.get_by_role("button", name="Copy the text").click()
    view.page.wait_for_function("() => document.querySelector('.note').textContent === 'Copied.'")
    assert view.page.evaluate(clipboard) == ANSWER
    view.page.evaluate("() => navigator.clipboard.writeText('')")
    view.root.locator("pre").focus()
    view.press("Control+a", "Control+c")
    assert view.page.evaluate(clipboard) == ANSWER
    assert view.page.locator("#here b").count() == 0


def test_several_views_of_one_model_go_their_own_ways(show: Show) -> None:
    view = show("timeline")
    view.page.evaluate("() => window.another()")
    first, second = (view.page.locator(".mtplx-timeline").nth(n) for n in range(2))
    first.locator("canvas").focus()
    view.press("ArrowDown")
    assert first.locator(".tells").inner_text().startswith("Pinned")
    assert second.locator(".tells").inner_text().startswith("12 requests")
    view.page.evaluate("() => window.views[1]()")
    assert view.held
    view.page.evaluate("() => window.views[0]()")
    assert not view.held
    assert view.page.evaluate("() => window.model.heard.length") == 0
    view.theme(dark=True)
