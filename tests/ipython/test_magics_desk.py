"""What the controls do, on a scripted engine and a real one: the same as the verbs do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from traitlets import TraitError

import mtplx_kernel as mk
from mtplx_kernel.errors import EngineClosed, InvalidRequest
from mtplx_kernel.magics_desk import MagicsDesk
from mtplx_kernel.widgets.desk import InForce, OpenRequest
from tests.ipython.conftest import Bench
from tests.ipython.scripted import Answer


def desk_of(bench: Bench) -> MagicsDesk:
    return MagicsDesk(bench.installation.magics, bench.engines, lambda: sorted(bench.loadable))


def test_what_is_in_force_is_read_whoever_changed_it(loaded: Bench) -> None:
    desk = desk_of(loaded)
    before = desk.read()
    assert (before.model, before.state, before.mode, before.depth) == (
        "scripted",
        "running",
        "mtp",
        None,
    )
    assert (before.scheduler, before.settings, before.endpoint) == ("serial", {}, None)
    assert before.sampling["max_tokens"] == 256
    loaded.run("%mtplx mode ar")
    loaded.run("%mtplx scheduler cooperative --width 3")
    loaded.run("%config MtplxMagics.temperature = 0.5")
    loaded.engine.set_default_depth(2)
    after = desk.read()
    assert (after.mode, after.scheduler, after.depth) == ("ar", "cooperative", 2)
    assert after.settings == {"width": 3, "itl_ms": 200.0, "ttft_ms": 2000.0}
    assert after.sampling["temperature"] == 0.5


def test_what_it_does_the_verbs_show(loaded: Bench) -> None:
    desk = desk_of(loaded)
    desk.set_mode("ar")
    desk.set_scheduler("mtp_batch", opt_in=True)
    desk.set_setting("width", 4)
    desk.set_depth(1)
    desk.set_sampling("top_k", 40)
    engine = loaded.engine
    assert (engine.mode, engine.scheduler, engine.settings) == ("ar", "mtp_batch", {"width": 4})
    assert engine.default_depth == 1
    loaded.run("%%mtplx\nHi")
    assert engine.asked[-1][1]["top_k"] == 40


def test_what_is_wrong_is_refused_and_changes_nothing(loaded: Bench) -> None:
    desk = desk_of(loaded)
    before = desk.read()
    with pytest.raises(InvalidRequest, match="is experimental and off"):
        desk.set_scheduler(desk.experimental, opt_in=False)
    with pytest.raises(InvalidRequest, match="depth must be a whole number from 0 to 16, not 99"):
        desk.set_depth(99)
    with pytest.raises(TraitError, match="temperature must be a number from 0 to 100, not -1"):
        desk.set_sampling("temperature", -1.0)
    assert desk.read() == before
    desk.set_scheduler(desk.experimental, opt_in=True)
    assert desk.read().scheduler == desk.experimental


def test_without_a_model_it_says_so(bench: Bench) -> None:
    desk = desk_of(bench)
    now = desk.read()
    assert (now.model, now.scheduler, now.requests) == (None, None, ())
    assert now.sampling["temperature"] == 0.0
    for act in (lambda: desk.set_mode("ar"), lambda: desk.serve(True), lambda: desk.set_depth(1)):
        with pytest.raises(EngineClosed, match="no model is loaded; choose one first"):
            act()
    desk.cancel(None)
    desk.serve(False)


def test_a_model_is_loaded_in_place_of_the_one_before(loaded: Bench, tiny_folder: Path) -> None:
    desk = desk_of(loaded)
    before = loaded.engine
    assert desk.models() == ("scripted",)
    loaded.loadable["tiny"] = mk.load(tiny_folder)
    desk.load("tiny")
    assert (desk.read().model, before.closed) == ("tiny llama", True)
    assert desk.models() == ("scripted", "tiny")


def test_the_endpoint_is_the_magics_own(loaded: Bench) -> None:
    desk = desk_of(loaded)
    desk.serve(True)
    endpoint = loaded.engines.endpoint
    assert endpoint is not None
    assert desk.read().endpoint == endpoint.url
    desk.serve(True)
    assert loaded.engines.endpoint is endpoint
    desk.serve(False)
    assert (desk.read().endpoint, loaded.engines.endpoint) == (None, None)
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", endpoint.port)) != 0


def test_open_requests_are_listed_and_cancelled_one_by_one(loaded: Bench) -> None:
    desk = desk_of(loaded)
    loaded.engine.answers = [Answer(endless=True, stuck=True) for _ in range(3)]
    first, second, third = (loaded.engine.submit(text) for text in "abc")
    first.window.admitted = first.window.first_token = 1.0
    second.window.admitted = 2.0
    desk.cancel("req-9")
    desk.cancel("req-1")
    assert desk.read().requests == (
        OpenRequest(request_id="req-1", doing="ending"),
        OpenRequest(request_id="req-2", doing="prefill"),
        OpenRequest(request_id="req-3", doing="waiting"),
    )
    assert desk.read().waiting == 1
    assert [h.cancel_reason for h in (first, second, third)] == ["cancelled", None, None]
    desk.cancel(None)
    assert third.cancel_reason == "cancelled"


def test_a_real_engine_lists_what_is_open(bench: Bench, tiny_folder: Path) -> None:
    bench.loadable["tiny"] = engine = mk.load(tiny_folder)
    desk = desk_of(bench)
    desk.load("tiny")
    handles = [engine.submit([1, 2, 3], max_tokens=90_000) for _ in range(2)]
    assert engine.requests() == handles
    assert [request.request_id for request in desk.read().requests] == ["req-1", "req-2"]
    desk.cancel("req-2")
    assert handles[1].result(60).finish_reason == "cancelled"
    assert engine.requests() == handles[:1]
    desk.cancel(None)
    assert handles[0].result(60).finish_reason == "cancelled"
    assert engine.requests() == []


def test_a_dead_engine_is_shown_as_dead(loaded: Bench) -> None:
    desk = desk_of(loaded)
    loaded.engine.state = "dead"
    now = desk.read()
    assert isinstance(now, InForce)
    assert (now.model, now.state) == ("scripted", "dead")
