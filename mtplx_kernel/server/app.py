"""The application: which routes there are, what they take, and what they answer with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mtplx_kernel import __version__
from mtplx_kernel.server import health
from mtplx_kernel.server.answers import (
    ERRORS,
    Answer,
    ChatAnswer,
    ChatChunk,
    ErrorAnswer,
    Model,
    ModelList,
    TextAnswer,
)
from mtplx_kernel.server.body import JSON
from mtplx_kernel.server.chat import chat
from mtplx_kernel.server.completions import completions
from mtplx_kernel.server.errors import add_handlers
from mtplx_kernel.server.reference import CONTENT_POLICY, page
from mtplx_kernel.server.safety import OPEN_PATHS
from mtplx_kernel.server.schema import Asked, ChatRequest, CompletionRequest
from mtplx_kernel.server.serving import Serving
from mtplx_kernel.server.settings import Settings

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

TITLE = "mtplx-kernel"
ABOUT = (
    "The engine of a notebook over OpenAI's API. The routes under /v1/hyper take the same bodies; "
    "their requests run one at a time, in the order in which they came, whatever the scheduler."
)
REF = "#/components/schemas/{model}"
EVENTS = "text/event-stream"

Answerer = Callable[..., Awaitable[Response]]


def make_app(engines: Callable[[], Engine], settings: Settings) -> FastAPI:
    """Make the application that answers in an engine's name.

    Parameters
    ----------
    engines
        Gives the engine in force, at every request; it raises EngineClosed where there is none.
    settings
        How it is served: the description of the API says whether a token is needed.
    """
    serving = Serving(engines)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            serving.close()

    app = FastAPI(
        title=TITLE,
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    add_handlers(app)
    _add_models(app, serving)
    for lane in ("/v1", "/v1/hyper"):
        hyper = lane != "/v1"
        _add_asking(app, f"{lane}/chat/completions", _asking(chat, serving, hyper), ChatRequest)
        _add_asking(
            app, f"{lane}/completions", _asking(completions, serving, hyper), CompletionRequest
        )
    health.add_routes(app, engines)
    _describe(app, with_token=settings.token is not None)
    return app


def _add_models(app: FastAPI, serving: Serving) -> None:
    async def models() -> Response:
        """List the model that answers."""
        return _json(ModelList(object="list", data=[serving.model()]))

    async def model(request: Request) -> Response:
        """Tell of one model."""
        return _json(serving.model(request.path_params["model"]))

    tags: list[Any] = ["models"]
    listed: dict[int | str, dict[str, Any]] = {200: {"model": ModelList}, **ERRORS}
    one: dict[int | str, dict[str, Any]] = {200: {"model": Model}, **ERRORS}
    named = {
        "parameters": [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    }
    app.add_api_route("/v1/models", models, tags=tags, responses=listed)
    # A hub's name holds a slash.
    app.add_api_route(
        "/v1/models/{model:path}", model, tags=tags, responses=one, openapi_extra=named
    )


def _asking(answerer: Answerer, serving: Serving, hyper: bool) -> Callable[[Request], Any]:
    async def asked(request: Request) -> Response:
        return await answerer(request, serving, hyper=hyper)

    asked.__doc__ = answerer.__doc__
    return asked


def _add_asking(
    app: FastAPI, path: str, route: Callable[[Request], Any], body: type[Asked]
) -> None:
    """Add a route whose body we read ourselves: its errors are OpenAI's, and no type is guessed."""
    whole, chunk = (ChatAnswer, ChatChunk) if body is ChatRequest else (TextAnswer, TextAnswer)
    answered = {
        JSON: {"schema": {"$ref": REF.format(model=whole.__name__)}},
        EVENTS: {"schema": {"$ref": REF.format(model=chunk.__name__)}},
    }
    taken = {JSON: {"schema": {"$ref": REF.format(model=body.__name__)}}}
    kind = "chats" if body is ChatRequest else "completions"
    lane = "hyper, " if "hyper" in path else ""
    app.add_api_route(
        path,
        route,
        methods=["POST"],
        tags=["answers"],
        summary=f"{lane}{kind}".capitalize(),
        description="Answer at once, or as a stream of events that ends with [DONE].",
        responses={200: {"description": "The answer.", "content": answered}, **ERRORS},
        openapi_extra={"requestBody": {"required": True, "content": taken}},
        response_class=Response,
    )


def _describe(app: FastAPI, *, with_token: bool) -> None:
    """Add the description of the API, as JSON and as a page that loads nothing else."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _openapi(app, with_token=with_token)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    async def docs() -> Response:
        """Show this description as a page."""
        return HTMLResponse(
            page(app.openapi()), headers={"content-security-policy": CONTENT_POLICY}
        )

    app.add_api_route("/docs", docs, include_in_schema=False)


def _openapi(app: FastAPI, *, with_token: bool) -> dict[str, Any]:
    found = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    bodies: list[type[Asked]] = [ChatRequest, CompletionRequest]
    answers: list[type[Answer]] = [ChatAnswer, ChatChunk, TextAnswer, ErrorAnswer]
    for mode, models in (("validation", bodies), ("serialization", answers)):
        pairs: Any = [(model, mode) for model in models]
        _, definitions = models_json_schema(pairs, ref_template=REF)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(definitions["$defs"])
    if with_token:
        scheme = {"type": "http", "scheme": "bearer"}
        found["components"]["securitySchemes"] = {"token": scheme}
        found["security"] = [{"token": []}]
        for path in OPEN_PATHS & found["paths"].keys():
            found["paths"][path]["get"]["security"] = []
    return found


def _json(answer: Answer) -> Response:
    return Response(answer.json_bytes(), media_type=JSON)
