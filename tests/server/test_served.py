"""An engine behind its endpoint: health, status, a switch of the model, and what serve refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import EngineClosed, InvalidRequest
from mtplx_kernel.server.thread import Endpoint, serve
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S, Gate, in_time
from tests.server.wire import Answer, answer_on, ask, connected, head, is_closed
from tests.tiny import write

HEALTH = ("/health", "/health/live", "/health/ready")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    return [write("llama", place / name, max_position_embeddings=20_000) for name in ("a", "b")]


@pytest.fixture(scope="module")
def shared(folders: list[Path]) -> Iterator[tuple[Engine, Endpoint]]:
    with mk.load(str(folders[0])) as engine, engine.serve() as endpoint:
        yield engine, endpoint


@pytest.fixture
def engine(shared: tuple[Engine, Endpoint]) -> Engine:
    return shared[0]


@pytest.fixture
def endpoint(shared: tuple[Engine, Endpoint]) -> Endpoint:
    return shared[1]


def get(endpoint: Endpoint, path: str, token: str | None = None) -> Answer:
    return ask(endpoint, head(f"GET {path} HTTP/1.1", token=token))


def healths(endpoint: Endpoint) -> list[tuple[int, Any, Any]]:
    """Status, live and ready of the three routes."""
    answers = [get(endpoint, path) for path in HEALTH]
    found = [(answer.status, json.loads(answer.body)) for answer in answers]
    return [(status, told["live"], told["ready"]) for status, told in found]


def post(endpoint: Endpoint, body: dict[str, Any]) -> Answer:
    data = json.dumps(body).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(data)}")
    return ask(endpoint, head("POST /v1/completions HTTP/1.1", *lines, token=endpoint.token) + data)


def complete(endpoint: Endpoint, model: str) -> Answer:
    return post(endpoint, {"model": model, "prompt": PROBE, "max_tokens": 4, "temperature": 0})


def test_a_token_is_drawn_and_asked_for(engine: Engine, endpoint: Endpoint) -> None:
    assert endpoint.token is not None
    assert len(endpoint.token) >= 32
    with engine.serve() as other:
        assert other.token != endpoint.token
        assert get(other, "/status", endpoint.token).status == 401
    assert get(endpoint, "/status", endpoint.token).status == 200
    assert get(endpoint, "/status").error["code"] == "invalid_api_key"
    assert endpoint.token not in repr(endpoint)


def test_it_answers_as_the_engine_does(engine: Engine, endpoint: Endpoint) -> None:
    answer = complete(endpoint, engine.name)
    assert answer.status == 200
    expected = engine.generate(PROBE, max_tokens=4, temperature=0).text
    assert json.loads(answer.body)["choices"][0]["text"] == expected


def test_all_is_well_while_the_engine_runs(endpoint: Endpoint) -> None:
    assert healths(endpoint) == [(200, True, True)] * 3


@pytest.mark.parametrize("scheduler", ["serial", "cooperative", "ar_batch", "mtp_batch", "hyper"])
def test_the_status_is_the_engines(engine: Engine, endpoint: Endpoint, scheduler: str) -> None:
    engine.configure(scheduler=scheduler)
    try:
        told = json.loads(get(endpoint, "/status", endpoint.token).body)
    finally:
        engine.configure(scheduler="serial")
    assert told["scheduler"]["mode"] == scheduler
    assert told["model"]["name"] == engine.name
    assert (told["state"], told["running"], told["queue"]["waiting"]) == ("running", 0, 0)


def test_a_head_is_a_get_without_its_body(endpoint: Endpoint) -> None:
    for path, token in (("/health", None), ("/v1/models", endpoint.token), ("/v1/nothing", None)):
        whole = get(endpoint, path, token)
        with connected(endpoint) as client:
            for _ in range(2):
                client.sendall(head(f"HEAD {path} HTTP/1.1", token=token))
                answer = answer_on(client, "HEAD")
                assert (answer.status, answer.body) == (whole.status, b"")
                assert answer.headers["content-length"] == whole.headers["content-length"]


def test_a_closed_engine_is_told_with_503(folders: list[Path]) -> None:
    engine = mk.load(str(folders[0]))
    with engine.serve() as endpoint:
        assert complete(endpoint, engine.name).status == 200
        engine.close()
        assert healths(endpoint) == [(503, True, False), (200, True, False), (503, True, False)]
        refused = complete(endpoint, engine.name)
        assert (refused.status, refused.error["code"]) == (503, "engine_closed")
        told = json.loads(get(endpoint, "/health/ready").body)
        assert told["error"]["code"] == "engine_closed"
        assert "it was closed" in told["error"]["message"]
        status = json.loads(get(endpoint, "/status", endpoint.token).body)
        assert (status["state"], status["memory_bytes"]) == ("closed", 0)


def test_a_dead_engine_is_not_live(folders: list[Path]) -> None:
    with mk.load(str(folders[0])) as engine, engine.serve() as endpoint:

        def break_its_loop(_: object) -> None:
            raise ZeroDivisionError("a fault of ours")

        engine._owner.post(break_its_loop)
        in_time(engine._owner._thread.join)
        assert healths(endpoint) == [(503, False, False)] * 3


def test_where_nothing_is_loaded_that_is_told() -> None:
    def none() -> Engine:
        raise EngineClosed("no model is loaded")

    with serve(none) as endpoint:
        assert healths(endpoint) == [(503, True, False), (200, True, False), (503, True, False)]
        status = get(endpoint, "/status", endpoint.token)
        assert (status.status, status.error["message"]) == (503, "no model is loaded")
        metrics = get(endpoint, "/metrics", endpoint.token)
        assert (metrics.status, b"mtplx_engine_ready 0\n" in metrics.body) == (200, True)


def test_the_model_may_be_switched_while_it_is_served(folders: list[Path]) -> None:
    with mk.load(str(folders[0])) as old, mk.load(str(folders[1])) as new:
        current = [old]
        with serve(lambda: current[0]) as endpoint:
            assert complete(endpoint, old.name).status == 200
            current[0] = new
            old.close()
            assert complete(endpoint, new.name).status == 200
            assert complete(endpoint, old.name).error["code"] == "model_not_found"
            told = json.loads(get(endpoint, "/status", endpoint.token).body)
            assert told["model"]["name"] == new.name
            assert healths(endpoint) == [(200, True, True)] * 3


def test_stopping_ends_streams_and_frees_the_engine(folders: list[Path]) -> None:
    with mk.load(str(folders[0])) as engine:
        endpoint = engine.serve()
        body = {"model": engine.name, "prompt": PROBE, "max_tokens": 15_000, "stream": True}
        data = json.dumps({**body, "ignore_eos": True}).encode()
        lines = ("Content-Type: application/json", f"Content-Length: {len(data)}")
        with connected(endpoint) as client:
            request = head("POST /v1/completions HTTP/1.1", *lines, token=endpoint.token)
            client.sendall(request + data)
            assert client.recv(100_000).startswith(b"HTTP/1.1 200 ")
            in_time(lambda: endpoint.stop(0))
            while not is_closed(client):
                pass
        after = engine.generate(PROBE, max_tokens=1, timeout=PATIENCE_S)
        assert len(after.token_ids) == 1
        (streamed, _) = engine.timeline.windows()
        assert streamed.finish_reason == "cancelled"


def test_an_endpoint_without_a_token_warns(engine: Engine) -> None:
    with pytest.warns(UserWarning, match=r"asks for no token: any program of this machine may"):
        endpoint = engine.serve(token=False)
    with endpoint:
        assert endpoint.token is None
        assert get(endpoint, "/status").status == 200
        assert repr(endpoint) == f"<Endpoint {endpoint.url}: running, no token>"


def test_an_own_token_and_origins_are_taken(engine: Engine) -> None:
    with engine.serve(token="my-own", cors=["http://app.example"]) as endpoint:
        origin = "Origin: http://app.example"
        answer = ask(endpoint, head("GET /v1/models HTTP/1.1", origin, token="my-own"))
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "http://app.example"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": 70_000}, "port must be 0 to 65535"),
        ({"token": ""}, "token must be 1 to 512"),
        ({"token": True}, "token must be a text"),
        ({"cors": "http://app.example"}, "cors must be a list of origins"),
        ({"host": "192.0.2.1"}, "host must be an address of this machine"),
        ({"body_limit": 0}, "body_limit must be"),
        ({"tokens": "x"}, "unknown option 'tokens'; allowed: body_limit, header_limit"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    engine: Engine, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.serve(**options)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_gate_does_not_hold_up_the_watchdogs(engine: Engine, endpoint: Endpoint) -> None:
    gate = Gate()
    handle = engine.submit(PROBE, max_tokens=2, on_token=gate)
    gate.await_reached()
    try:
        assert healths(endpoint) == [(200, True, True)] * 3
        told = json.loads(get(endpoint, "/status", endpoint.token).body)
        assert told["running"] == 1
        assert get(endpoint, "/metrics", endpoint.token).status == 200
    finally:
        gate.open()
    handle.result(PATIENCE_S)
