"""``%mtplx show``: the timeline, the acceptance of drafts, one request, and the controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mtplx_kernel import options
from mtplx_kernel.completion import known_names
from mtplx_kernel.endpoint_magics import EndpointMagics
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.grammar import unknown
from mtplx_kernel.magics_desk import MagicsDesk
from mtplx_kernel.show_options import ALL, OFF, REQUEST, SHOWN, VIEWS
from mtplx_kernel.views import ControlsView, Sight, View, Views

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from mtplx_kernel.display import QuietResults
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.engine.timeline import Timeline
    from mtplx_kernel.extension import EngineHolder
    from mtplx_kernel.widgets.controls import Controls


class ShowMagics(EndpointMagics):
    """The part of the magics that shows what the engine does; what draws is imported on use."""

    def __init__(
        self, shell: InteractiveShell, engines: EngineHolder, results: QuietResults
    ) -> None:
        super().__init__(shell, engines, results)
        self.views = Views(shell)

    def _show(self, words: list[str]) -> None:
        given, names = options.read_words("show", words, most=2)
        what = names[0] if names else ALL
        if what not in SHOWN:
            raise InvalidRequest(unknown("view", what, SHOWN))
        if len(names) > 1 and what != REQUEST:
            usage = f"%mtplx {options.VERBS['show'].usage}"
            raise InvalidRequest(f"{names[1]!r} is one word too many; write {usage}")
        if what == OFF:
            said = ", ".join(self.views.kinds)
            self.views.close()
            print(f"No longer followed: {said}." if said else "Nothing is shown.")
            return
        for sight in self._sights(what, names[1:], keep=given.get("live", False)):
            self.views.show(sight)

    def _sights(self, what: str, names: list[str], *, keep: bool) -> Iterator[Sight]:
        if what == "controls":
            yield self._controls()
            return
        engine = self._engine()
        for kind in VIEWS if what == ALL else (what,):
            if kind == "timeline":
                yield _timeline(engine, keep)
            elif kind == "acceptance":
                yield _acceptance(engine, keep)
            elif kind == "controls":
                yield self._controls()
            # Of all, the newest request is one only if there is any.
            elif what == REQUEST or engine.timeline.windows():
                yield _request(engine, names[0] if names else None, keep)

    def _controls(self) -> Sight:
        from mtplx_kernel.widgets.desk import bundle

        desk = MagicsDesk(self, self._engines, known_names)

        def make() -> Controls:
            from mtplx_kernel.widgets.controls import Controls

            return Controls(desk)

        return Sight(
            "controls",
            lambda: ControlsView(make, lambda: bundle(desk.read())),
            lambda: bundle(desk.read()),
            lambda: bundle(desk.read())["text/plain"],
            desk.read,
        )


def _timeline(engine: Engine, keep: bool) -> Sight:
    from mtplx_kernel.widgets.static import bundle, said

    timeline = engine.timeline

    def live() -> View:
        from mtplx_kernel.widgets.timeline import shown

        return shown(engine, keep=keep)

    return Sight(
        "timeline",
        live,
        lambda: bundle(timeline.snapshot()),
        lambda: said(timeline.snapshot()),
        _ran(timeline),
    )


def _acceptance(engine: Engine, keep: bool) -> Sight:
    from mtplx_kernel.widgets.acceptance_pages import Followed, as_text, bundle

    followed = Followed(engine)

    def live() -> View:
        from mtplx_kernel.widgets.acceptance import shown

        return shown(engine, keep=keep)

    return Sight(
        "acceptance",
        live,
        lambda: bundle(followed.view()),
        lambda: as_text(followed.view()),
        _ran(engine.timeline),
    )


def _request(engine: Engine, name: str | None, keep: bool) -> Sight:
    from mtplx_kernel.widgets.trace_pages import as_text, bundle
    from mtplx_kernel.widgets.tracing import tracer_of

    tracer = tracer_of(engine, f"req-{name}" if name is not None and name.isdecimal() else name)
    request_id = tracer.trace().request_id

    def live() -> View:
        from mtplx_kernel.widgets.inspector import shown

        return shown(engine, request_id, keep=keep)

    return Sight(
        REQUEST,
        live,
        lambda: bundle(tracer.trace()),
        lambda: as_text(tracer.trace()),
        _ran(engine.timeline),
    )


def _ran(timeline: Timeline) -> Callable[[], tuple[str, int]]:
    """Gives another value once requests have come or gone."""

    def version() -> tuple[str, int]:
        windows = timeline.windows()
        last = windows[-1].request_id if windows else ""
        return last, sum(window.ended is not None for window in windows)

    return version
