"""Errors of an endpoint, read from its answers: a line for people, fields for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from mtplx_kernel.errors import EndpointError

SHOWN = 300
"""Most characters of an answer that is no error in OpenAI's shape."""


def refusal(
    body: object,
    said: str,
    *,
    status: int | None = None,
    retry_after: str | None = None,
    mode_unasked: bool = False,
    completion: object | None = None,
) -> EndpointError:
    """The error that an endpoint's answer stands for.

    Parameters
    ----------
    body
        The answer's JSON; text where it is none.
    said
        How the line begins.
    retry_after
        The header; a date in it is not used, servers of models send seconds.
    mode_unasked
        Whether the generation mode of the request was the client's, not the caller's.
    completion
        What had come before.
    """
    error = body.get("error") if isinstance(body, Mapping) else None
    found: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error or body}
    message = " ".join(str(found.get("message") or "no reason given").split())
    param = _text(found, "param")
    return EndpointError(
        f"{said}: {message[:SHOWN]}{_hint(status, param, mode_unasked)}",
        status=status,
        type=_text(found, "type"),
        param=param,
        code=_text(found, "code"),
        retry_after_s=_seconds(retry_after),
        completion=completion,
    )


def body_of(content: bytes) -> object:
    """The JSON of an answer, or its text where it is none."""
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _text(error: Mapping[str, Any], name: str) -> str | None:
    value = error.get(name)
    return None if value is None else str(value)


def _hint(status: int | None, param: str | None, mode_unasked: bool) -> str:
    if status == 401:
        return " (token=... takes the endpoint's token)"
    if mode_unasked and param == "generation_mode":
        return " (concurrency_mode=None asks for no mode)"
    return ""


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
