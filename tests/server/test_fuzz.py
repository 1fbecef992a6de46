"""A few hundred of the odd requests of which `make conformance` sends ten thousand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

import mtplx_kernel as mk
from mtplx_kernel.server.settings import Settings
from mtplx_kernel.server.thread import Endpoint
from tests.conformance.fuzz import fuzz
from tests.conformance.load import Target
from tests.conformance.odd import odd
from tests.server.site import MODEL
from tests.server.wire import TOKEN, start
from tests.tiny import write

REQUESTS = 300
SEED = 20
HERE = Target("http://127.0.0.1", TOKEN, MODEL)


def test_odd_requests_get_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write("llama", tmp_path / MODEL)
    with mk.load(str(folder)) as engine, engine.serve(token=TOKEN) as endpoint:
        target = Target(endpoint.url, TOKEN, MODEL)
        found = asyncio.run(fuzz(target, requests=REQUESTS, seed=SEED))
    assert found.faults == []
    assert caplog.records == [], "no exception was left to the event loop"
    assert sum(found.statuses.values()) == REQUESTS
    assert {200, 400, 401, 403, 404, 405, 415} <= set(found.statuses)


def test_a_seed_and_a_number_give_a_request_again() -> None:
    first, again, other = (odd(HERE, seed, 7) for seed in (1, 1, 2))
    assert first == again
    assert first.data != other.data


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b'{"error": {}}', "status 500"),
        (400, b"{}", "KeyError"),
        (400, b"no", "JSONDecodeError"),
        (400, b'{"error": {"message": "a", "type": "b", "param": null}}', "in another shape"),
    ],
)
def test_wrong_answers_are_noticed(status: int, body: bytes, said: str) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send(start(status))
            await send({"type": "http.response.body", "body": body})

    with Endpoint(failing, Settings(token=TOKEN)) as endpoint:
        target = Target(endpoint.url, TOKEN, MODEL)
        found = asyncio.run(fuzz(target, requests=20, seed=SEED))
    assert any(said in fault for fault in found.faults)
