"""A few seconds of the load that `make conformance` runs for a minute."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

import mtplx_kernel as mk
from mtplx_kernel.server.settings import Settings
from mtplx_kernel.server.thread import Endpoint
from tests.conformance.load import Target, load
from tests.conformance.streams import Broken, Choice, Reader, Told
from tests.conformance.watching import growth
from tests.conformance.wishes import wishes
from tests.server.site import MODEL
from tests.server.wire import TOKEN, refuses, start

CLIENTS, SECONDS, POOL = 16, 2, 12
SEED = 5


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [thread for thread in threading.enumerate() if thread not in before] == []


def test_a_crowd_gets_what_each_would_get_alone(served_folder: Path) -> None:
    with mk.load(str(served_folder), scheduler="cooperative") as engine:
        with engine.serve(token=TOKEN) as endpoint:
            target = Target(endpoint.url, TOKEN, engine.name)
            outcome = asyncio.run(
                load(
                    target,
                    wishes(engine.name, POOL, SEED),
                    clients=CLIENTS,
                    seconds=SECONDS,
                    seed=SEED,
                )
            )
        assert outcome.faults == []
        assert outcome.counts
        assert refuses(endpoint.host, endpoint.port)
        assert not engine.closed


def chunk(text: str, reason: str | None = None, answer: str = "cmpl-1", index: int = 0) -> str:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
    return f"data: {json.dumps({'id': answer, 'choices': [choice]})}"


USAGE = f"data: {json.dumps({'id': 'cmpl-1', 'choices': [], 'usage': {'completion_tokens': 2}})}"
DONE = "data: [DONE]"


def read(*lines: str) -> Told:
    reader = Reader()
    for line in lines:
        reader.line(line)
    return reader.told()


def test_a_stream_is_put_together() -> None:
    told = read(chunk("a"), "", chunk("b"), chunk("", "stop"), USAGE, DONE)
    assert told == Told((Choice("ab", (), "stop"),), 2)


@pytest.mark.parametrize(
    "lines",
    [
        (chunk("a"), chunk("", "stop"), USAGE),
        (chunk("a"), chunk("", "stop"), DONE),
        (chunk("a"), USAGE, DONE),
        (chunk("a", "stop"), chunk("b"), USAGE, DONE),
        (chunk("a"), chunk("b", "stop", answer="cmpl-2"), USAGE, DONE),
        (chunk("a", "stop", index=1), USAGE, DONE),
        (chunk("a", "stop"), USAGE, DONE, chunk("b")),
        ('data: {"error": {"message": "no"}}',),
        ("event: x",),
    ],
)
def test_a_stream_that_is_not_whole_is_noticed(lines: tuple[str, ...]) -> None:
    with pytest.raises(Broken):
        read(*lines)


class Forgetful:
    """An endpoint that says something else each time, and is never idle."""

    def __init__(self) -> None:
        self.said = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.said += 1
        choice = {"index": 0, "text": f"{self.said}", "logprobs": None, "finish_reason": "stop"}
        answer = {
            "choices": [choice],
            "usage": {"completion_tokens": 1},
            "running": 1,
            "queue": {"waiting": 0},
        }
        await send(start())
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def test_growth_compares_the_last_quarter_with_the_second() -> None:
    assert growth([1, 1, 100, 100, 100, 100, 110, 110]) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="four"):
        growth([1, 2, 3])


def test_other_answers_and_what_still_runs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conformance.load.PATIENCE_S", 0.2)
    with Endpoint(Forgetful(), Settings(token=TOKEN)) as endpoint:
        target = Target(endpoint.url, TOKEN, MODEL)
        pool = wishes(MODEL, 2, SEED)
        outcome = asyncio.run(load(target, pool, clients=0, seconds=0, seed=SEED))
    running, *others = outcome.faults
    assert running == "1 still run and 0 still wait"
    assert [other.split(":")[0] for other in others] == ["afterwards", "afterwards"]
