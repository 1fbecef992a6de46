"""Requests that nobody would send on purpose, each drawn anew from a seed and its number."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conformance.load import Target

ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/hyper/chat/completions",
    "/v1/hyper/completions",
)
READ_ROUTES = (
    "/v1/models",
    "/status",
    "/health",
    "/health/live",
    "/health/ready",
    "/metrics",
    "/docs",
    "/openapi.json",
)
METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "get", "A" * 40)
TEXTS = (
    "",
    " ",
    "a",
    "Hello",
    "\x00",
    "\ud800",
    "\N{GRINNING FACE}" * 9,
    "\u202e" + "e\u0301" * 20,
    "<|im_start|>system\n",
    "{{ messages }}{% raw %}",
    "../../etc/passwd",
    "x" * 5000,
    "true",
    "1",
    "NaN",
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 20, 255, 512, 4096),
    *(2**31, 2**53 + 1, -(2**63), 2**64 - 1, 2**64, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1e-308, 5e-324, 1e308, 1.0, 2.0000001),
)
RAW = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1E-999",
    "00",
    "1" * 5000,
    "[" * 3000,
    '{"a":' * 900,
)
"""Put into a body as they are: no JSON, or more than a program likes to read."""
FIELDS = (
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature"),
    *("top_p", "top_k", "min_p", "n", "stop", "seed", "stream", "stream_options", "logprobs"),
    *("top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "user", "echo"),
    *("best_of", "suffix", "response_format", "tools", "tool_choice", "parallel_tool_calls"),
    *("functions", "function_call", "modalities", "audio", "prediction", "metadata", "store"),
    *("generation_mode", "depth", "acceptance", "priority", "ignore_eos", "include_stats"),
)
MARK = '"\ue000"'
"""Stands in a body for raw text, which is put in at the end."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A request as bytes.

    Attributes
    ----------
    cut
        Whether it ends too soon: then no answer is waited for.
    """

    number: int
    method: str
    data: bytes
    cut: bool


def odd(target: Target, seed: int, number: int) -> Odd:
    """The request of this number.

    Parameters
    ----------
    target
        Whose token and model are in most of them.
    """
    drawn = random.Random(f"{seed}-{number}")
    path, method = drawn.choice(ROUTES), "POST"
    body = _bytes(drawn, _body(drawn, path, target.model))
    headers = [
        ("host", "localhost"),
        ("authorization", f"Bearer {target.token}"),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    if drawn.random() < 0.15:
        path, method = _place(drawn), drawn.choice((*METHODS, "GET", "GET", "POST"))
    if drawn.random() < 0.25:
        headers, body = _headers(drawn, headers, body)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    data = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body
    if drawn.random() < 0.04:
        data = _flipped(drawn, data)
    cut = drawn.random() < 0.03
    return Odd(number, method, data[: drawn.randrange(len(data))] if cut else data, cut)


def _body(drawn: random.Random, path: str, model: str) -> Any:
    """A good body with a few things wrong, or no body at all."""
    if drawn.random() < 0.05:
        return _anything(drawn, 4)
    body: dict[str, Any] = {"model": model, "max_tokens": drawn.randint(1, 6)}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "Hello"}]
    else:
        body["prompt"] = "Hello"
    for _ in range(drawn.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        _spoil(drawn, body)
    return body


def _spoil(drawn: random.Random, body: dict[str, Any]) -> None:
    """Change a field, or something inside one; or take one out."""
    roll = drawn.random()
    if roll < 0.08:
        body.pop(drawn.choice(list(body)), None) if body else None
    elif roll < 0.16:
        body[drawn.choice(TEXTS)] = _anything(drawn, 2)
    elif roll < 0.28 and isinstance(body.get("messages"), list):
        message = {"role": drawn.choice(("user", "system", "assistant", "tool", "developer", ""))}
        message |= {drawn.choice(("content", "name", "tool_calls", "x")): _anything(drawn, 3)}
        body["messages"] = [*body["messages"], message]
    else:
        name = drawn.choice(FIELDS)
        body[name] = _plausible(drawn, name) if drawn.random() < 0.6 else _anything(drawn, 3)


def _plausible(drawn: random.Random, name: str) -> Any:
    """A value of about the right kind."""
    likely: dict[str, Callable[[], Any]] = {
        "stream": lambda: True,
        "stream_options": lambda: {"include_usage": drawn.choice((True, False, None, 1))},
        "stop": lambda: drawn.choices(TEXTS, k=drawn.randint(0, 5)),
        "logit_bias": lambda: {str(drawn.choice(NUMBERS)): drawn.choice(NUMBERS)},
        "prompt": lambda: drawn.choice(
            (
                drawn.choices(TEXTS, k=3),
                [1, 2, drawn.choice(NUMBERS)],
                [[5, 6], [7]],
                [[]],
                [1, "a"],
            )
        ),
        "response_format": lambda: {
            "type": drawn.choice(("text", "json_object", "json_schema", "xml")),
            **drawn.choice(({}, {"json_schema": {"name": "a", "schema": _anything(drawn, 3)}})),
        },
        "tools": lambda: [
            {"type": "function", "function": {"name": drawn.choice(TEXTS), "parameters": {}}}
        ],
        "tool_choice": lambda: drawn.choice(("none", "auto", "required", {"type": "function"})),
        "generation_mode": lambda: drawn.choice(("mtp", "ar", "MTP")),
        "acceptance": lambda: drawn.choice(("coupled", "rejection", "block", "")),
        "modalities": lambda: drawn.choice((["text"], ["audio"], [])),
        "echo": lambda: True,
        "logprobs": lambda: drawn.choice((True, 0, 3, 5, 6)),
        "max_tokens": lambda: drawn.choice((0, 1, 16, 64, 511, 512, 513)),
    }
    return likely[name]() if name in likely else drawn.choice(NUMBERS)


def _anything(drawn: random.Random, depth: int) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: drawn.random() < 0.5,
        lambda: drawn.choice(NUMBERS),
        lambda: drawn.choice(TEXTS),
        lambda: MARK.strip('"'),
    ]
    if depth:
        kinds += [
            lambda: [_anything(drawn, depth - 1) for _ in range(drawn.choice((0, 1, 3)))],
            lambda: {
                drawn.choice((*TEXTS, *FIELDS, "type", "text", "content")): _anything(
                    drawn, depth - 1
                )
                for _ in range(drawn.choice((0, 1, 3)))
            },
        ]
    return drawn.choice(kinds)()


def _bytes(drawn: random.Random, body: Any) -> bytes:
    """The body written as JSON, or not quite."""
    text = json.dumps(body, ensure_ascii=drawn.random() < 0.5)
    marks = json.dumps(MARK.strip('"')), MARK
    for mark in marks:
        text = text.replace(mark, drawn.choice(RAW))
    roll = drawn.random()
    if roll < 0.03:
        return text.encode("utf-16", "surrogatepass")
    data = text.encode("utf-8", "surrogatepass")
    if roll < 0.06:
        return b"\xef\xbb\xbf" + data
    if roll < 0.1:
        return data[: drawn.randrange(len(data) + 1)]
    if roll < 0.14:
        return _flipped(drawn, data)
    if roll < 0.16:
        return data + drawn.choice((b"}", b"\x00", b" ", data, b"\n" * 1000))
    return data


def _flipped(drawn: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(drawn.choice((1, 1, 3, 20))):
        if changed:
            changed[drawn.randrange(len(changed))] = drawn.randrange(256)
    return bytes(changed)


def _place(drawn: random.Random) -> str:
    return drawn.choice(
        (
            *ROUTES,
            *READ_ROUTES,
            *READ_ROUTES,
            drawn.choice(ROUTES) + "/",
            drawn.choice(ROUTES) + "?a=b&a=%ff",
            "/v1/models/" + drawn.choice(("x", "%2e%2e", "a/b", "%00", "%ff", "x" * 3000, "")),
            "/" + drawn.choice(("", "v1", "favicon.ico", "%", "..%2f..", "\xe9", "*")),
            "*",
            "//evil.example/v1/models",
            "http://localhost/v1/models",
            "x" * 20_000,
        )
    )


def _headers(
    drawn: random.Random, headers: list[tuple[str, str]], body: bytes
) -> tuple[list[tuple[str, str]], bytes]:
    """Other headers; the body goes with them where they say how it is written."""
    named = dict(headers)
    value = drawn.choice(
        (
            "",
            "a",
            "\xff",
            "a" * 9000,
            "Bearer ",
            "text/html",
            "-1",
            "1e3",
            "0",
            "99999999999999999999",
        )
    )
    roll = drawn.random()
    if roll < 0.3:
        named[drawn.choice(list(named))] = value
    elif roll < 0.5:
        del named[drawn.choice(list(named))]
    elif roll < 0.6:
        del named["content-length"]
        named["transfer-encoding"] = drawn.choice(
            ("chunked", "chunked", "gzip", "chunked, chunked")
        )
        size = f"{len(body):x}" if drawn.random() < 0.7 else drawn.choice(("zz", "-1", "f" * 30))
        body = size.encode() + b"\r\n" + body + b"\r\n0\r\n\r\n"
    elif roll < 0.8:
        extra = drawn.choice(
            (
                ("origin", drawn.choice(("null", "http://evil.example", "http://localhost"))),
                ("expect", "100-continue"),
                ("upgrade", "websocket"),
                ("content-encoding", drawn.choice(("gzip", "br", "identity", "x"))),
                ("content-type", drawn.choice(("application/json; charset=utf-16", "text/plain"))),
                ("accept", drawn.choice(("text/html", "*/*;q=0", "text/event-stream"))),
                ("cookie", "a=b; " * 900),
                ("range", "bytes=0-1"),
                ("te", "trailers"),
                ("access-control-request-method", "POST"),
                ("x-http-method-override", "DELETE"),
                ("a b", "c"),
            )
        )
        return [*named.items(), extra], body
    else:
        return [*named.items(), *named.items(), *((f"x-{n}", value) for n in range(120))], body
    return list(named.items()), body
