"""Fields and buttons for what is in force; they follow it, whoever changes it."""

from __future__ import annotations

import html
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ipywidgets as ipw

from mtplx_kernel.widgets.desk import NO_MODEL, Desk, InForce, Setting
from mtplx_kernel.widgets.queue_buttons import QueueButtons
from mtplx_kernel.widgets.subshell import heard_while_busy

LOOK_S = 0.5
"""Seconds between two looks at what is in force."""
SLICE_S = 0.05
"""The longest wait without a look at keyboard interrupts."""
WHOLE = ("width", "prefill_cap", "max_tokens", "top_k")
"""Settings that are whole numbers; what is no such one and no yes or no may have a fraction."""
BY_ITSELF = "the engine's choice"
"""What stands for no depth: a dropdown takes None for nothing chosen."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Something to do, and how it is said while it is done."""

    doing: str
    act: Callable[[], None]


class Controls:
    """Shows what a desk says is in force, and passes on what the user changes.

    Everything is done on one thread of its own, which looks at the desk twice a second. It sends
    only what has changed, so that controls of an idle engine send nothing.

    Parameters
    ----------
    desk
        What they act on.
    look_s
        Seconds between two looks.

    Attributes
    ----------
    box
        The widget to display.
    """

    def __init__(self, desk: Desk, look_s: float = LOOK_S) -> None:
        self._desk = desk
        self._look_s = look_s
        self._wishes: queue.SimpleQueue[Wish | None] = queue.SimpleQueue()
        self._said = ""
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="mtplx-controls", daemon=True)
        self._make()
        self._look()
        self._follow_user()
        self._thread.start()

    @property
    def in_force(self) -> InForce:
        """What the desk says now."""
        return self._desk.read()

    def close(self) -> None:
        """End the thread, once what it is doing is done, and take the widgets away."""
        if self._closed:
            return
        self._closed = True
        self._wishes.put(None)
        while self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(SLICE_S)
        close_tree(self.box)
        for field in (*self._settings.values(), *self._sampling.values()):
            close_tree(field)
        self.queue.close()

    # Widgets

    def _make(self) -> None:
        desk = self._desk
        # One layout for all: every widget of its own is a message, and memory in the browser.
        self._cell = ipw.Layout(width="auto")
        grid = ipw.Layout(
            display="grid",
            width="100%",
            grid_template_columns="repeat(auto-fill, minmax(19em, 1fr))",
            grid_gap="0 8px",
        )
        self.model = self._dropdown("Model", (NO_MODEL,))
        self.mode = self._dropdown("Mode", desk.modes)
        self.scheduler = self._dropdown("Scheduler", desk.schedulers)
        depths = (BY_ITSELF, *(str(n) for n in range(desk.deepest + 1)))
        self.depth = self._dropdown("Depth", depths)
        self.opt_in = self._checkbox(f"allow {desk.experimental}")
        self.endpoint = self._checkbox("serve the endpoint")
        self.queue = QueueButtons(self._cancel)
        self.line = ipw.HTML(layout={"width": "100%"})
        self._settings: dict[str, Any] = {}
        self._sampling: dict[str, Any] = {}
        self._of_scheduler = ipw.Box(layout=grid)
        self._of_sampler = ipw.Box(layout=grid)
        self.box = ipw.VBox(
            [
                ipw.Box([self.model, self.mode, self.depth, self.endpoint], layout=grid),
                _title("Scheduling"),
                ipw.Box([self.scheduler, self.opt_in], layout=grid),
                self._of_scheduler,
                _title("Sampling"),
                self._of_sampler,
                _title("Queue"),
                self.queue.box,
                self.line,
            ],
            layout={"width": "100%", "overflow": "hidden"},
        )

    def _follow_user(self) -> None:
        desk = self._desk
        self._on(self.model, lambda name: Wish(f"Loading {name}", lambda: desk.load(name)))
        self._on(self.mode, lambda mode: Wish(f"Mode {mode}", lambda: desk.set_mode(mode)))
        self._on(
            self.depth, lambda said: Wish(f"Depth {said}", lambda: desk.set_depth(_depth(said)))
        )
        self._on(self.endpoint, lambda on: Wish("Endpoint", lambda: desk.serve(on)))
        self._on(
            self.scheduler,
            lambda name: Wish(
                f"Switching to {name}", lambda: desk.set_scheduler(name, opt_in=self.opt_in.value)
            ),
        )

    def _on(self, field: Any, wish: Callable[[Any], Wish]) -> None:
        """Have a change by the user turned into a wish; what the thread sets is no such change."""

        def changed(change: Any) -> None:
            if threading.current_thread() is not self._thread:
                self._wishes.put(wish(change["new"]))

        field.observe(changed, "value")

    def _cancel(self, request_id: str | None) -> None:
        doing = f"Cancelling {request_id or 'all'}"
        self._wishes.put(Wish(doing, lambda: self._desk.cancel(request_id)))

    def _dropdown(self, description: str, options: tuple[str, ...]) -> Any:
        return heard_while_busy(
            ipw.Dropdown(description=description, options=options, layout=self._cell, style=_ASIDE)
        )

    def _checkbox(self, description: str, value: bool = False) -> Any:
        return heard_while_busy(
            ipw.Checkbox(value, description=description, indent=False, layout=self._cell)
        )

    def _field(self, name: str, value: Setting) -> Any:
        words = name.replace("_", " ")
        if isinstance(value, bool):
            return self._checkbox(words, value)
        kind = ipw.IntText if name in WHOLE else ipw.FloatText
        return heard_while_busy(
            kind(
                value,
                description=words,
                continuous_update=False,
                layout=self._cell,
                style=_ASIDE,
            )
        )

    # The thread

    def _work(self) -> None:
        while True:
            try:
                wish = self._wishes.get(timeout=self._look_s)
            except queue.Empty:
                with self._told():
                    self._look()
                continue
            if wish is None:
                return
            self._fulfil(wish)

    def _fulfil(self, wish: Wish) -> None:
        self._say(f"{wish.doing} ...")
        with self._told():
            wish.act()
            self._said = ""
        # What the user has changed since is not put back before it was tried.
        if self._wishes.empty():
            with self._told():
                self._look()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say an error in the last line: nobody waits for it."""
        try:
            yield
        except Exception as error:  # whatever it is, the controls go on
            self._say(" ".join(str(error).split()) or type(error).__name__)

    def _say(self, text: str) -> None:
        self._said = text
        self._show_line(self._in_line)

    # What is in force

    def _look(self) -> None:
        now = self._desk.read()
        loaded = now.model is not None
        names = self._desk.models()
        shown = now.model if now.model is not None else NO_MODEL
        _offer(self.model, names if shown in names else (*names, shown), shown)
        for field, value in (
            (self.mode, now.mode),
            (self.scheduler, now.scheduler),
            (self.depth, BY_ITSELF if now.depth is None else str(now.depth)),
        ):
            _set(field, "disabled", not loaded)
            if loaded:
                _set(field, "value", value)
        if now.scheduler == self._desk.experimental:
            _set(self.opt_in, "value", True)
        _set(self.endpoint, "value", now.endpoint is not None)
        self._show_fields(self._of_scheduler, self._settings, now.settings, self._setting)
        self._show_fields(self._of_sampler, self._sampling, now.sampling, self._sampler)
        self.queue.show(now.requests)
        self._show_line(_line(now))

    def _show_fields(
        self,
        box: Any,
        fields: dict[str, Any],
        values: Mapping[str, Setting],
        wish: Callable[[str, Setting], Wish],
    ) -> None:
        for name, value in values.items():
            if name not in fields:
                fields[name] = self._field(name, value)
                self._on(fields[name], partial(wish, name))
            _set(fields[name], "value", value)
        _set(box, "children", tuple(fields[name] for name in values))

    def _setting(self, name: str, value: Setting) -> Wish:
        return Wish(f"Setting {name}", lambda: self._desk.set_setting(name, value))

    def _sampler(self, name: str, value: Setting) -> Wish:
        return Wish(f"Setting {name}", lambda: self._desk.set_sampling(name, value))

    def _show_line(self, in_line: str) -> None:
        self._in_line = in_line
        said = f"<br><b>{html.escape(self._said)}</b>" if self._said else ""
        text = f'<div role="status" aria-live="polite">{html.escape(in_line)}{said}</div>'
        _set(self.line, "value", text)


def close_tree(widget: Any) -> None:
    """Close a widget with all that is in it, layouts and styles too: the registry keeps each."""
    for child in getattr(widget, "children", ()):
        close_tree(child)
    for part in (widget.layout, getattr(widget, "style", None), widget):
        if part is not None:
            part.close()


def _title(text: str) -> Any:
    return ipw.HTML(f"<b>{text}</b>", layout={"height": "auto", "margin": "8px 2px 0"})


def _line(now: InForce) -> str:
    """What no field shows."""
    queue = f"{len(now.requests) - now.waiting} running, {now.waiting} waiting"
    parts = [queue, f"endpoint {now.endpoint}" if now.endpoint else "no endpoint"]
    if now.model is None:
        parts.insert(0, NO_MODEL)
    elif now.state != "running":
        parts.insert(0, f"the engine is {now.state}")
    if now.mode_reason:
        parts.append(now.mode_reason)
    return "; ".join(parts)


def _depth(said: str) -> int | None:
    return None if said == BY_ITSELF else int(said)


def _offer(field: Any, options: tuple[str, ...], value: str) -> None:
    """Other options select the first of them, so the value follows before anything is sent."""
    with field.hold_sync():
        _set(field, "options", options)
        _set(field, "value", value)


def _set(widget: Any, name: str, value: Any) -> None:
    if getattr(widget, name) != value:
        setattr(widget, name, value)


_ASIDE = {"description_width": "9.5em"}
