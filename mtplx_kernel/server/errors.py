"""Errors over HTTP: whatever goes wrong is told in OpenAI's shape, with the right status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from mtplx_kernel.errors import (
    EngineClosed,
    InvalidRequest,
    ModelLoading,
    MTPLXError,
    PromptTooLong,
    QueueFull,
    RequestTimeout,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

RETRY_AFTER_S = 1
"""When a client that met a full queue may ask again: requests end every few moments."""
LOADING_S = 5
"""When a client that came before the model may ask again: loading takes seconds to minutes."""
CLIENT_GONE = 499
"""The status of an answer that nobody reads."""
SHOWN = 80
"""Characters of a wrong value that an error repeats."""
MISSING = "missing_required_parameter"
INVALID, SERVER = "invalid_request_error", "server_error"
OF_OPTION = {
    "mode": "generation_mode",
    "caches": "max_tokens",
    "max_tokens": "max_tokens",
    "logit_bias": "logit_bias",
    "priority": "priority",
    "ignore_eos": "ignore_eos",
}
"""The parameter that an engine's complaint is about, by its first word; else it is the prompt."""


class APIError(Exception):
    """An error with the status and the fields of OpenAI's error object.

    Parameters
    ----------
    status
        The HTTP status.
    message
        One line: what is wrong and what is allowed.
    type, param, code
        OpenAI's kind of error, the parameter that is wrong, and a word for programs.
    headers
        Of the answer, besides the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,  # noqa: A002 -- OpenAI's name
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # What clients sent may be told back: it must not break the line.
        self.message = " ".join(message.split())
        super().__init__(self.message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """What is sent."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def of_engine(error: MTPLXError, prompt: str | None = None) -> APIError:
    """What an error of the engine is over HTTP.

    Parameters
    ----------
    prompt
        The parameter that holds the prompt, where the error came of a request.
    """
    message = str(error)
    if isinstance(error, PromptTooLong):
        return APIError(400, message, param=prompt, code="context_length_exceeded")
    if isinstance(error, InvalidRequest):
        param = OF_OPTION.get(message.partition(" ")[0], prompt)
        return APIError(400, message, param=param, code="invalid_value")
    if isinstance(error, QueueFull):
        wait = {"retry-after": str(RETRY_AFTER_S)}
        return APIError(503, message, type=SERVER, code="queue_full", headers=wait)
    if isinstance(error, ModelLoading):
        wait = {"retry-after": str(LOADING_S)}
        return APIError(503, message, type=SERVER, code="model_loading", headers=wait)
    if isinstance(error, EngineClosed):
        return APIError(503, message, type=SERVER, code="engine_closed")
    if isinstance(error, RequestTimeout):
        return APIError(504, message, type=SERVER, code="timeout")
    return APIError(500, message, type=SERVER, code="request_failed")


def of_fault() -> APIError:
    """What clients are told of a fault of the server itself."""
    return APIError(
        500,
        "the server failed; the log of the process that runs it says why",
        type=SERVER,
        code="internal_error",
        headers={"connection": "close"},  # as the server does with what has failed
    )


class Complaint(ValueError):
    """What is wrong with a value of a body, in our words.

    Parameters
    ----------
    message
        One line: what is allowed.
    code
        A word for programs.
    field
        The field that it is about, where a whole record was checked.
    """

    def __init__(self, message: str, code: str = "invalid_value", field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.field = field


def of_validation(errors: list[Any]) -> APIError:
    """The first of pydantic's complaints about a body or a path."""
    first = errors[0]
    kind, value = first["type"], first.get("input")
    ours = first.get("ctx", {}).get("error")
    field = (ours.field,) if isinstance(ours, Complaint) and ours.field else ()
    where = _path((*first["loc"], *field))
    said, code = first["msg"], "invalid_type" if kind.endswith("_type") else "invalid_value"
    if kind == "extra_forbidden":
        said, code = f"unknown field {where!r}", "unknown_parameter"
    elif kind == "missing":
        said, code = f"the field {where!r} is missing", MISSING
    elif kind == "model_type":
        said = f"{where or 'the body'} must be a JSON object, not {_shown(value)}"
    elif isinstance(ours, Complaint):
        said, code = str(ours), ours.code
    elif said.startswith("Input "):
        said = f"{where} {said.removeprefix('Input ')}, not {_shown(value)}"
    else:
        said = f"{where}: {said[:1].lower()}{said[1:]}"
    return APIError(400, said, param=where or None, code=code)


def _path(location: tuple[str | int, ...]) -> str:
    """A place in the body as OpenAI writes it, such as messages[0].content."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits, or lists deeper, than Python writes
        return "what was sent"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def add_handlers(app: FastAPI) -> None:
    """Have every error of an application answered in OpenAI's shape."""

    @app.exception_handler(APIError)
    async def told(_: Request, error: APIError) -> Response:
        return error.response()

    @app.exception_handler(MTPLXError)
    async def engine(_: Request, error: MTPLXError) -> Response:
        return of_engine(error).response()

    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: ValidationError | RequestValidationError) -> Response:
        return of_validation(list(error.errors())).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return _of_http(request, error).response()

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(Exception)
    async def fault(_: Request, error: Exception) -> Response:  # the server logs it
        return of_fault().response()


def _of_http(request: Request, error: HTTPException) -> APIError:
    """What the framework itself refuses."""
    path, headers = request.url.path, error.headers
    if error.status_code == 404:
        message = f"unknown URL ({request.method} {path}); /docs lists what there is"
        return APIError(404, message, code="unknown_url", headers=headers)
    if error.status_code == 405:
        allowed = (headers or {}).get("Allow", "another method")
        message = f"{request.method} is not allowed on {path}; allowed: {allowed}"
        return APIError(405, message, code="method_not_allowed", headers=headers)
    kind = INVALID if error.status_code < 500 else SERVER
    return APIError(error.status_code, str(error.detail), type=kind, headers=headers)
