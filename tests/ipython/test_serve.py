"""%mtplx serve and stop: the model over HTTP, its token out of sight, and nothing left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from IPython.core.error import UsageError

import mtplx_kernel as mk
from mtplx_kernel import extension
from tests.ipython.conftest import Bench
from tests.ipython.scripted import ScriptedEngine, new_shell
from tests.tiny import write_endless

LIMIT_S = 60
Shown = Callable[[], str]


def asked(endpoint: Any, prompt: str, model: str, token: str | None = None) -> httpx.Response:
    """The answer to a prompt of plain text, over HTTP."""
    sent = {"Authorization": f"Bearer {endpoint.token}"} if token is None else {}
    if token:
        sent = {"Authorization": f"Bearer {token}"}
    return httpx.post(
        f"http://127.0.0.1:{endpoint.port}/v1/completions",
        json={"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0},
        headers=sent,
        timeout=LIMIT_S,
    )


def refuses(port: int) -> bool:
    """Whether nobody listens at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def threads_beside(before: set[threading.Thread]) -> list[str]:
    """The threads that live, but not before; those that are about to end are waited for."""
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(timeout=1)
    return [thread.name for thread in new if thread.is_alive()]


@pytest.fixture
def tiny(bench: Bench, tiny_folder: Path, shown: Shown) -> Bench:
    """A bench on which the tiny model is loaded, with an engine of its own."""
    bench.loadable["tiny"] = mk.load(tiny_folder)
    bench.run("%mtplx load tiny")
    shown()
    return bench


def test_the_model_answers_over_http_as_it_does_here(tiny: Bench, shown: Shown) -> None:
    endpoint = tiny.run("%mtplx serve")
    engine: Any = tiny.engines.current
    answer = asked(endpoint, "Once", engine.name)
    assert answer.status_code == 200, answer.text
    found = engine.generate("Once", raw=True, max_tokens=12)
    assert answer.json()["choices"][0]["text"] == found.text
    assert asked(endpoint, "Once", engine.name, token="").status_code == 401
    assert asked(endpoint, "Once", engine.name, token="wrong").status_code == 401
    assert shown() == (
        f"Serving {engine.name} at {endpoint.url} until %mtplx stop.\n"
        f"OpenAI's clients take {endpoint.url}/v1 as base_url and "
        "mtplx_kernel.current_endpoint().token as api_key.\n"
        f"Out[2]: {endpoint!r}\n"
    )


def test_the_token_is_in_no_output(loaded: Bench, shown: Shown) -> None:
    endpoint = loaded.run("%mtplx serve")
    loaded.run("%mtplx status")
    assert len(endpoint.token) >= 32
    text = shown()
    assert endpoint.token not in text
    assert f"Endpoint:     {endpoint.url}, with a token\n" in text
    formats, _ = loaded.shell.display_formatter.format(endpoint)
    assert endpoint.token not in str(formats)


def test_the_endpoint_can_be_had_by_name(
    loaded: Bench, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    monkeypatch.setattr(extension, "_engines", loaded.engines)
    assert mk.current_endpoint() is None
    endpoint = loaded.run("served = %mtplx serve")
    assert loaded.shell.user_ns["served"] is mk.current_endpoint()
    assert endpoint is None  # an assignment shows nothing
    loaded.run("%mtplx stop")
    assert mk.current_endpoint() is None


def test_the_same_cell_again_changes_nothing(loaded: Bench, shown: Shown) -> None:
    first = loaded.run("%mtplx serve --token one")
    assert loaded.run("%mtplx serve --token one") is first
    shown()
    assert isinstance(loaded.run("%mtplx serve --token two"), UsageError)
    assert shown() == (
        f"UsageError: already serving at {first.url}, with other options; %mtplx stop ends that\n"
    )
    assert first.running


def test_stop_frees_the_port_and_serve_takes_it_again(loaded: Bench, shown: Shown) -> None:
    before = set(threading.enumerate())
    first = loaded.run("%mtplx serve")
    shown()
    loaded.run("%mtplx stop")
    assert shown() == f"Stopped serving at {first.url}.\n"
    assert (first.running, refuses(first.port), threads_beside(before)) == (False, True, [])
    loaded.run("%mtplx stop")
    assert shown() == "Nothing is served.\n"
    second = loaded.run(f"%mtplx serve --port {first.port}")
    assert (second.port, refuses(first.port)) == (first.port, False)
    assert second.token != first.token
    assert not loaded.engine.closed


def test_an_interrupt_of_stop_cuts_streams_off(
    loaded: Bench, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    endpoint = loaded.run("%mtplx serve")
    stop, timeouts = endpoint.stop, []

    def interrupted_once(*given: float) -> None:
        timeouts.append(given)
        if len(timeouts) == 1:
            raise KeyboardInterrupt
        stop(*given)

    monkeypatch.setattr(endpoint, "stop", interrupted_once)
    shown()
    loaded.run("%mtplx stop")
    assert (timeouts, refuses(endpoint.port)) == ([(), (0,)], True)
    assert shown() == f"Stopped serving at {endpoint.url}.\n"


def test_one_that_was_stopped_by_itself_does_not_count(loaded: Bench, shown: Shown) -> None:
    first = loaded.run("%mtplx serve")
    first.stop()
    shown()
    loaded.run("%mtplx status")
    assert "Endpoint:" not in shown()
    assert loaded.run("%mtplx serve --token other").token == "other"


def test_the_model_may_change_while_it_is_served(tiny: Bench, tmp_path: Path) -> None:
    endpoint = tiny.run("%mtplx serve")
    tiny.loadable["other"] = mk.load(write_endless(tmp_path / "other"))
    before = str(tiny.engines.current and tiny.engines.current.name)
    tiny.run("%mtplx load other")
    assert endpoint.running
    assert asked(endpoint, "Once", "other").status_code == 200
    gone = asked(endpoint, "Once", before)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")


def test_a_closed_engine_is_said_and_not_hung_on(tiny: Bench, shown: Shown) -> None:
    endpoint = tiny.run("%mtplx serve")
    engine: Any = tiny.engines.current
    engine.close()
    answer = asked(endpoint, "Once", engine.name)
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no model is loaded")
    shown()
    tiny.run("%mtplx status")
    assert shown().splitlines() == [
        "No model is loaded. Load one: %mtplx load smollm2-135m",
        f"Endpoint:     {endpoint.url}, with a token",
    ]


def test_unload_ends_it_too(loaded: Bench, shown: Shown) -> None:
    before = set(threading.enumerate())
    endpoint = loaded.run("%mtplx serve")
    shown()
    loaded.run("%mtplx unload")
    assert shown() == f"Unloaded scripted.\nStopped serving at {endpoint.url}.\n"
    assert (refuses(endpoint.port), threads_beside(before)) == (True, [])


def test_unload_ext_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = ScriptedEngine()
    monkeypatch.setattr(extension, "_engines", extension.EngineHolder(lambda name, **_: engine))
    shell, before = new_shell(), set(threading.enumerate())
    shell.extension_manager.load_extension("mtplx_kernel")
    shell.run_line_magic("mtplx", "load scripted")
    endpoint: Any = shell.run_line_magic("mtplx", "serve")
    assert not refuses(endpoint.port)
    shell.extension_manager.unload_extension("mtplx_kernel")
    assert engine.closed
    assert (endpoint.running, mk.current_endpoint()) == (False, None)
    assert (refuses(endpoint.port), threads_beside(before)) == (True, [])


def test_origins_that_are_listed_may_ask(loaded: Bench) -> None:
    endpoint = loaded.run("%mtplx serve --cors http://localhost:3000,https://a.example")

    def preflight(origin: str) -> str | None:
        answer = httpx.options(
            f"http://127.0.0.1:{endpoint.port}/v1/chat/completions",
            headers={"Origin": origin, "Access-Control-Request-Method": "POST"},
            timeout=LIMIT_S,
        )
        return answer.headers.get("access-control-allow-origin")

    assert preflight("https://a.example") == "https://a.example"
    assert preflight("https://b.example") is None


def test_without_a_token_it_says_so(loaded: Bench, shown: Shown) -> None:
    endpoint = loaded.run("%mtplx serve --no-auth")
    text = shown()
    assert (
        f"\nOpenAI's clients take {endpoint.url}/v1 as base_url and any text as api_key.\n" in text
    )
    assert f"\nWarning: {endpoint.url} asks for no token: any program of this " in f"\n{text}"
    answer = httpx.get(f"http://127.0.0.1:{endpoint.port}/status", timeout=LIMIT_S)
    assert answer.status_code == 200
    loaded.run("%mtplx status")
    assert f"Endpoint:     {endpoint.url}, without a token\n" in shown()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("serve now", "'now' is one word too many; write %mtplx serve [options]"),
        ("serve --prot 1", "unknown option '--prot'; did you mean --port? allowed: --host, "),
        ("serve --port 70000", "--port must be "),
        ("serve --port x", "--port must be "),
        ("serve --host nowhere.invalid", "--host "),
        ("serve --token a --no-auth", "--token and --no-auth exclude each other"),
        ("serve --token ''", "--token must be "),
        ("serve --cors example.com", "--cors takes origins such as http://localhost:3000"),
        ("stop it", "'it' is one word too many; write %mtplx stop"),
    ],
)
def test_a_mistake_is_one_line(loaded: Bench, shown: Shown, line: str, message: str) -> None:
    assert isinstance(loaded.run(f"%mtplx {line}"), UsageError)
    text = shown()
    assert text.startswith(f"UsageError: {message}")
    assert text.count("\n") == 1
    assert loaded.engines.endpoint is None


def test_a_port_in_use_is_one_line(loaded: Bench, shown: Shown) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert isinstance(loaded.run(f"%mtplx serve --port {port}"), UsageError)
    assert shown().startswith(f"UsageError: --port {port} ")


def test_there_must_be_a_model(bench: Bench, shown: Shown) -> None:
    assert isinstance(bench.run("%mtplx serve"), UsageError)
    assert shown() == "UsageError: no model is loaded; load one: %mtplx load smollm2-135m\n"
