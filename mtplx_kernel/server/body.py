"""From the bytes of a request to a checked record: content type, encoding, JSON, fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.message import Message
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from mtplx_kernel.server.errors import APIError

Record = TypeVar("Record", bound=BaseModel)

JSON = "application/json"
MOST_FIELDS = 5000
"""Of one object: each that is wrong would be looked at, while nobody else is answered."""


async def read_body(request: Request, kind: type[Record], later: Mapping[str, str]) -> Record:
    """The body of a request as a record.

    Parameters
    ----------
    kind
        Says which fields there are.
    later
        Fields that OpenAI has and this endpoint does not offer, with what to say of each. Null asks
        for nothing, so it is fine.

    Raises
    ------
    APIError
        If the body is no JSON object, or asks for what is not offered.
    pydantic.ValidationError
        If a field is unknown, missing or wrong.
    """
    _check_headers(request)
    data = _parse(await request.body())
    if isinstance(data, dict):
        for name in [name for name in later if name in data]:
            if data.pop(name) is not None:
                raise APIError(400, later[name], param=name, code="unsupported_parameter")
    return kind.model_validate(data)


def _check_headers(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    read = Message()
    read["content-type"] = content_type
    charset = str(read.get_param("charset", "utf-8")).lower()
    if read.get_content_type() != JSON or charset not in ("utf-8", "utf8"):
        said = f"not {content_type!r}" if content_type else "and the request has none"
        raise APIError(
            415, f"the content type must be {JSON} in UTF-8, {said}", code="unsupported_media_type"
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise APIError(
            415,
            f"the body must not be compressed, and its content encoding is {encoding!r}",
            code="unsupported_media_type",
        )


def _parse(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_json(f"byte {error.start} is no UTF-8") from None
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise _bad_json("it is nested too deep") from None
    except ValueError as error:  # JSON's own complaints, and numbers of too many digits
        raise _bad_json(str(error)) from None
    # JSON can write half a character, which no text may hold; it must, as an escape.
    if "\\ud" in text.lower():
        _check_characters(data)
    return data


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which each name comes once; readers differ in which of two they take."""
    if len(pairs) > MOST_FIELDS:
        raise APIError(
            400,
            f"an object of the body may have {MOST_FIELDS} fields, and one has {len(pairs)}",
            code="invalid_value",
        )
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:80]!r} comes twice in an object")
        found[name] = value
    return found


def _check_characters(data: Any) -> None:
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise _bad_json(f"{value[error.start]!r} is half a character") from None


def _bad_json(reason: str) -> APIError:
    return APIError(400, f"the body is not valid JSON: {reason}", code="invalid_json")
