"""What the controls act on: the engine and the endpoint of the magics, and their defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mtplx_kernel import options
from mtplx_kernel.decoding.params import MAX_DEPTH
from mtplx_kernel.errors import EngineClosed
from mtplx_kernel.prompt_magics import SAMPLING_TRAITS
from mtplx_kernel.scheduling.options import TAKEN, SchedulerMode
from mtplx_kernel.widgets.desk import InForce, OpenRequest, Setting

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.engine.request import Handle
    from mtplx_kernel.extension import EngineHolder
    from mtplx_kernel.prompt_magics import PromptMagics


class MagicsDesk:
    """Does for the controls what the verbs of ``%mtplx`` do, and says what is in force.

    Parameters
    ----------
    magics
        Whose traits are the defaults of prompts.
    engines
        Who holds engine and endpoint.
    names
        Says which models can be loaded.
    """

    modes = options.MODES
    schedulers = options.SCHEDULERS
    deepest = MAX_DEPTH
    experimental = str(SchedulerMode.MTP_COHORT_EXPERIMENTAL)

    def __init__(
        self, magics: PromptMagics, engines: EngineHolder, names: Callable[[], list[str]]
    ) -> None:
        self._magics = magics
        self._engines = engines
        self._names = names
        self._known: tuple[str, ...] | None = None

    def models(self) -> tuple[str, ...]:
        """The names that were known when this was asked first, or since the last load."""
        if self._known is None:
            self._known = tuple(self._names())
        return self._known

    def read(self) -> InForce:
        """What is in force now."""
        sampling = {name: getattr(self._magics, name) for name in SAMPLING_TRAITS}
        engine, endpoint = self._engines.current, self._engines.endpoint
        url = endpoint.url if endpoint is not None else None
        if engine is None:
            return InForce(sampling=sampling, endpoint=url)
        status = engine.status()
        scheduler = status.get("scheduler", {"mode": engine.scheduler, "settings": {}})
        taken = TAKEN[SchedulerMode(scheduler["mode"])]
        return InForce(
            model=engine.name,
            state=status["state"],
            mode=engine.mode,
            mode_reason=engine.mode_reason,
            scheduler=scheduler["mode"],
            settings={k: v for k, v in scheduler["settings"].items() if k in taken},
            depth=engine.default_depth,
            sampling=sampling,
            endpoint=url,
            requests=tuple(map(_opened, engine.requests())),
        )

    def load(self, name: str) -> None:
        """As ``%mtplx load``."""
        loading = {"mode": self._magics.mode} if self._magics.mode else {}
        self._engines.load(name, **loading)
        self._known = None

    def set_mode(self, mode: str) -> None:
        """As ``%mtplx mode``."""
        self._engine().configure(mode=mode)

    def set_scheduler(self, name: str, *, opt_in: bool) -> None:
        """As ``%mtplx scheduler NAME``; to the experimental one the user has to have opted in."""
        given: dict[str, Any] = (
            {"experimental": True} if opt_in and name == self.experimental else {}
        )
        self._engine().configure(scheduler=name, **given)

    def set_setting(self, name: str, value: Setting) -> None:
        """As ``%mtplx scheduler --NAME VALUE``."""
        changes: dict[str, Any] = {name: value}
        self._engine().configure(**changes)

    def set_depth(self, depth: int | None) -> None:
        """The depth of requests that name none."""
        self._engine().set_default_depth(depth)

    def set_sampling(self, name: str, value: Setting) -> None:
        """As ``%config MtplxMagics.NAME = VALUE``."""
        setattr(self._magics, name, value)

    def serve(self, on: bool) -> None:
        """As ``%mtplx serve`` and ``%mtplx stop``; one that is served already stays as it is."""
        if not on:
            self._engines.stop()
        elif self._engines.endpoint is None:
            self._engine()
            self._engines.serve()

    def cancel(self, request_id: str | None) -> None:
        """Cancel one of the open requests, or all."""
        engine = self._engines.current
        for handle in engine.requests() if engine is not None else ():
            if request_id in (None, handle.request_id):
                handle.cancel()

    def _engine(self) -> Engine:
        engine = self._engines.current
        if engine is None:
            raise EngineClosed("no model is loaded; choose one first")
        return engine


def _opened(handle: Handle) -> OpenRequest:
    window = handle.window
    if handle.cancel_reason is not None:
        doing = "ending"
    elif window.first_token is not None:
        doing = "decoding"
    else:
        doing = "waiting" if window.admitted is None else "prefill"
    return OpenRequest(request_id=handle.request_id, doing=doing)
