"""The options of ``serve``, the magic's and the command line's, and what they mean."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.grammar import Option, whole


def _origins(text: str) -> tuple[str, ...]:
    return tuple(origin.strip() for origin in text.split(","))


SERVE_OPTIONS = (
    Option("--host", str, "ADDRESS", "where to listen; without it this machine alone can ask"),
    Option("--port", whole, "N", "the port; 0, as without it, takes a free one"),
    Option("--token", str, "TEXT", "what clients must send; without it one is drawn"),
    Option("--no-auth", None, "", "no token: whoever reaches the port may ask"),
    Option(
        "--cors",
        _origins,
        "A,B",
        "web pages that may ask, by origin, such as http://localhost:3000",
        repeats=True,
    ),
)


def serve_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The options of ``serve``, by the names that the endpoint has for them.

    Raises
    ------
    InvalidRequest
        For options that exclude each other.
    """
    rest = dict(given)
    if rest.pop("no_auth", False):
        if "token" in rest:
            raise InvalidRequest("--token and --no-auth exclude each other")
        rest["token"] = False
    if "cors" in rest:
        rest["cors"] = tuple(origin for group in rest["cors"] for origin in group)
    return rest


@contextmanager
def said_plainly() -> Iterator[None]:
    """Say what an endpoint warns of as a line on stderr, without its place in our code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(f"Warning: {warning.message}", file=sys.stderr, flush=True)
