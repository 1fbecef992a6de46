"""A view by itself in a page of a browser, as anywidget would show it, without a kernel."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

from mtplx_kernel.widgets.assets import script, style

ADDRESS = "http://localhost/"
"""Nothing is there: the page is made up, at a place where a clipboard may be used."""
PAGE = """<!doctype html><title>A view</title><body data-jp-theme-light="%s">
<main id="here"></main><div style="height: 3000px"></div>"""
MOUNT = """async ([script, style, values]) => {
  const sheet = document.createElement("style");
  sheet.textContent = style;
  document.head.append(sheet);
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  const heard = [];
  window.model = {
    values,
    get: (name) => values[name],
    set: (name, value) => (values[name] = value),
    save_changes: () => {},
    on: (name, act) => heard.push([name, act]),
    off: (name, act) => heard.splice(heard.findIndex((h) => h[0] === name && h[1] === act), 1),
    send(news) {
      Object.assign(values, news);
      for (const [name, act] of heard) if (name.slice("change:".length) in news) act();
    },
    heard,
  };
  const widget = await module.default();
  const show = () => widget.render({ model: window.model, el: document.getElementById("here") });
  window.views = [show()];
  window.another = () => window.views.push(show());
  if ("render" in module) console.error("anywidget takes an exported render for the old form");
}"""
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WIDER = """() => document.documentElement.scrollWidth > document.documentElement.clientWidth
  ? ["the page"]
  : [...document.querySelectorAll("#here *")]
    .filter((part) => part.getBoundingClientRect().right > innerWidth + 1)
    .map((part) => `${part.tagName}.${part.getAttribute("class")}`)"""
CUT_OFF = """() => [...document.querySelectorAll("#here svg text")].filter((text) => {
  const [place, all] = [text.getBBox(), text.ownerSVGElement.viewBox.baseVal];
  return place.x < 0 || place.y < 0
    || place.x + place.width > all.width || place.y + place.height > all.height;
}).map((text) => text.textContent)"""


class Mounted:
    """One view in a page of its own.

    Parameters
    ----------
    chromium
        The browser.
    name
        Of the view: timeline, acceptance or inspector.
    values
        Of its traits.
    options
        Of the page.

    Attributes
    ----------
    complaints
        Errors and warnings of the page.
    """

    def __init__(
        self,
        chromium: Browser,
        name: str,
        values: dict[str, Any],
        *,
        dark: bool = False,
        **options: Any,
    ) -> None:
        self.complaints: list[str] = []
        context = chromium.new_context(**options)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=ADDRESS)
        self.page: Page = context.new_page()
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        body = PAGE % json.dumps(not dark)
        self.page.route(ADDRESS, lambda route: route.fulfill(body=body, content_type="text/html"))
        self.page.goto(ADDRESS)
        held = {"held": False}
        self.page.evaluate(MOUNT, [script(f"{name}.js"), style(f"{name}.css"), {**values, **held}])
        self.root: Locator = self.page.locator(f".mtplx-{name}").first
        self.settle()

    def settle(self) -> None:
        """Wait until all that was asked for is drawn."""
        self.page.evaluate(FRAMES)

    def send(self, values: dict[str, Any]) -> None:
        """Change traits, as a message from Python does."""
        self.page.evaluate("(values) => window.model.send(values)", values)
        self.settle()

    def theme(self, *, dark: bool) -> None:
        """Give the page another theme."""
        self.page.evaluate("(light) => { document.body.dataset.jpThemeLight = light }", not dark)
        self.settle()

    def press(self, *keys: str) -> None:
        """Type keys into what has the focus."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    @property
    def held(self) -> bool:
        """Whether the view holds its model."""
        return bool(self.page.evaluate("() => window.model.values.held"))

    @property
    def scrolled(self) -> int:
        """How far the page is scrolled."""
        return int(self.page.evaluate("() => Math.round(scrollY)"))

    def wider_than_the_window(self) -> list[str]:
        """What reaches out of the window, and words that reach out of their chart."""
        found: list[str] = self.page.evaluate(WIDER) + self.page.evaluate(CUT_OFF)
        return found

    def close(self) -> None:
        """End the page."""
        self.page.context.close()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)
