"""The routes of watchdogs and dashboards: health, status and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, PlainTextResponse

from mtplx_kernel.errors import EngineClosed
from mtplx_kernel.server.answers import ERRORS
from mtplx_kernel.server.errors import SERVER, APIError
from mtplx_kernel.server.exposition import CONTENT_TYPE
from mtplx_kernel.server.metrics import Metrics

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

RESPONSES: dict[int | str, dict[str, Any]] = {
    503: {"description": "No engine takes requests."},
    **ERRORS,
}


@dataclass(frozen=True, slots=True)
class Health:
    """How the engine is.

    Attributes
    ----------
    live
        False once its thread has died, which it cannot recover from.
    ready
        Whether it takes requests.
    reason
        Why not; None where it does.
    """

    live: bool
    ready: bool
    reason: str | None = None

    @classmethod
    def of(cls, engines: Callable[[], Engine]) -> Health:
        """Look at the engine that is served now."""
        try:
            engine = engines()
        except EngineClosed as error:
            return cls(live=True, ready=False, reason=str(error))
        if not engine.closed:
            return cls(live=True, ready=True)
        status = engine.status()
        return cls(live=status["state"] != "dead", ready=False, reason=status["reason"])

    def answer(self, *, well: bool) -> JSONResponse:
        """What is answered: 200 if it is well in what was asked, else 503 with the reason."""
        told = {"live": self.live, "ready": self.ready}
        if well:
            return JSONResponse(told)
        error = APIError(503, self.reason or "", type=SERVER, code="engine_closed")
        return JSONResponse({**told, **error.body()}, error.status)


def add_routes(app: FastAPI, engines: Callable[[], Engine]) -> None:
    """Add /health, /health/live, /health/ready, /status and /metrics to an application.

    What counts for /metrics is kept as ``app.state.metrics``, so that whoever serves the
    application can have it keep up with the timeline.

    Parameters
    ----------
    engines
        Gives the engine that is served now, or raises EngineClosed.
    """
    metrics = app.state.metrics = Metrics(engines)

    async def health() -> JSONResponse:
        """Whether the engine is alive and takes requests. Needs no token."""
        found = Health.of(engines)
        return found.answer(well=found.live and found.ready)

    async def live() -> JSONResponse:
        """Whether the server and the engine's thread are alive. Needs no token."""
        found = Health.of(engines)
        return found.answer(well=found.live)

    async def ready() -> JSONResponse:
        """Whether the engine takes requests. Needs no token."""
        found = Health.of(engines)
        return found.answer(well=found.ready)

    async def status() -> JSONResponse:
        """What is loaded and what is in force."""
        return JSONResponse(engines().status())

    async def prometheus() -> PlainTextResponse:
        """What requests came to, as Prometheus reads it."""
        return PlainTextResponse(metrics.text(), media_type=CONTENT_TYPE)

    for path, route in (("/health", health), ("/health/live", live), ("/health/ready", ready)):
        app.add_api_route(path, route, tags=["server"], responses=RESPONSES)
    app.add_api_route("/status", status, tags=["server"], responses=RESPONSES)
    app.add_api_route(
        "/metrics", prometheus, tags=["server"], response_class=PlainTextResponse, responses=ERRORS
    )
