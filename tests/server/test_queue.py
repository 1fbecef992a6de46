"""What the engine's queue does to HTTP requests: turns, a full queue, an engine that is closed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.timeline import DecodeWindow
from mtplx_kernel.errors import (
    EngineClosed,
    InvalidRequest,
    ModelLoading,
    QueueFull,
    RequestFailed,
    RequestTimeout,
)
from mtplx_kernel.server.answering import options_of
from mtplx_kernel.server.errors import of_engine
from mtplx_kernel.server.schema import ChatRequest
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S, Gate
from tests.server.site import CHAT, HYPER_CHAT, HYPER_TEXT, TEXT, Site, body, text_of, wait_until

OpenSite = Callable[..., Site]


def waiting(engine: Engine) -> int:
    count: int = engine.status()["queue"]["waiting"]
    return count


def ask_in_order(site: Site, pool: ThreadPoolExecutor, *paths: str) -> list[Future[Any]]:
    """Requests that wait behind one that holds the engine, each queued after the one before."""
    asked = []
    for path in paths:
        before = waiting(site.engine)
        asked.append(pool.submit(site.ask, path, max_tokens=8, ignore_eos=True, stream=False))
        wait_until(lambda before=before: waiting(site.engine) == before + 1)  # type: ignore[misc]
    return asked


def run_behind(site: Site, *paths: str) -> list[DecodeWindow]:
    """The windows of requests that were all queued before the first of them ran."""
    gate = Gate()
    held = site.engine.submit(PROBE, max_tokens=2, ignore_eos=True, on_token=gate)
    gate.await_reached()
    with ThreadPoolExecutor(len(paths)) as pool:
        asked = ask_in_order(site, pool, *paths)
        gate.open()
        for answer in asked:
            answer.result(PATIENCE_S)
    held.result(PATIENCE_S)
    return site.engine.timeline.windows()[-len(paths) :]


def overlap(windows: list[DecodeWindow]) -> list[bool]:
    """Whether each request began before the one before it had ended."""
    return [
        cast(float, later.admitted) < cast(float, earlier.ended)
        for earlier, later in itertools.pairwise(windows)
    ]


@pytest.mark.parametrize("scheduler", ["cooperative", "mtp_batch", "ar_batch"])
def test_hyper_requests_run_one_at_a_time_in_their_order(
    open_site: OpenSite, scheduler: str
) -> None:
    site = open_site(scheduler=scheduler)
    hyper = run_behind(site, HYPER_CHAT, HYPER_TEXT, HYPER_CHAT)
    assert overlap(hyper) == [False, False]
    assert [window.scheduler_mode for window in hyper] == [scheduler] * 3


def test_requests_of_the_other_routes_take_turns(open_site: OpenSite) -> None:
    windows = run_behind(open_site(scheduler="cooperative"), CHAT, TEXT, CHAT)
    assert overlap(windows) == [True, True]


def test_a_hyper_request_is_in_no_cohort_with_others(open_site: OpenSite) -> None:
    site = open_site(scheduler="mtp_batch")
    windows = run_behind(site, CHAT, HYPER_CHAT, CHAT, HYPER_CHAT)
    first, one, second, other = windows
    assert one.cohort_id != other.cohort_id
    assert not {one.cohort_id, other.cohort_id} & {first.cohort_id, second.cohort_id}
    assert (one.width, other.width) == (1, 1)


@pytest.mark.parametrize("scheduler", ["serial", "hyper"])
def test_where_requests_run_one_at_a_time_hyper_ones_keep_their_place(
    open_site: OpenSite, scheduler: str
) -> None:
    site = open_site(scheduler=scheduler)
    windows = run_behind(site, HYPER_CHAT, TEXT, HYPER_TEXT, CHAT)
    assert overlap(windows) == [False] * 3
    assert sorted(windows, key=lambda window: cast(float, window.admitted)) == windows


def test_a_hyper_answer_is_the_same_answer(site: Site) -> None:
    for path, hyper in ((CHAT, HYPER_CHAT), (TEXT, HYPER_TEXT)):
        fields = {"temperature": 1.5, "seed": 3, "n": 2}
        assert site.ask(hyper, **fields)["choices"] == site.ask(path, **fields)["choices"]
        assert site.stream(hyper)[-1]["choices"][0]["finish_reason"] == "length"


def test_a_full_queue_is_503_with_a_time_to_come_back(open_site: OpenSite) -> None:
    site, gate = open_site(queue_limit=2), Gate()
    held = site.engine.submit(PROBE, max_tokens=2, on_token=gate)
    gate.await_reached()
    for fields in ({"n": 3}, {"n": 3, "stream": True}):
        response = site.post(CHAT, **fields)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
    gate.open()
    held.result(PATIENCE_S)
    wait_until(lambda: waiting(site.engine) == 0)
    # Those of the three that had found a place have left it.
    ends = [window.finish_reason for window in site.engine.timeline.windows()[1:]]
    assert ends == ["cancelled"] * 2
    assert site.ask(CHAT)["choices"]


def test_a_closed_engine_is_503(open_site: OpenSite) -> None:
    site = open_site()
    site.engine.close()
    for path in (CHAT, HYPER_TEXT):
        status, error = site.refusal(path)
        assert (status, error["code"]) == (503, "engine_closed")


def test_another_engine_answers_from_the_next_request_on(open_site: OpenSite) -> None:
    site, other = open_site(), open_site()
    first = site.engine
    answer = site.ask(CHAT)
    site.engine = other.engine
    assert site.ask(CHAT)["choices"] == answer["choices"]
    site.engine = first
    assert [len(each.timeline.windows()) for each in (first, other.engine)] == [1, 1]


def test_streams_side_by_side_say_what_each_says_alone(open_site: OpenSite) -> None:
    site = open_site(scheduler="mtp_batch")
    asked = [{"temperature": 1.2, "seed": seed, "n": 2, "max_tokens": 30} for seed in range(5)]
    alone = [[c["message"]["content"] for c in site.ask(CHAT, **f)["choices"]] for f in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        streams = list(pool.map(lambda fields: site.stream(CHAT, **fields), asked))
    assert [[text_of(chunks, index) for index in range(2)] for chunks in streams] == alone


@pytest.mark.parametrize("stream", [False, True])
def test_who_is_under_way_is_told_that_the_engine_was_closed(
    open_site: OpenSite, stream: bool
) -> None:
    site = open_site()
    fields = body(CHAT, max_tokens=15_000, ignore_eos=True, stream=stream)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(site.client.post(CHAT, json=fields)))
    thread.start()
    wait_until(lambda: site.engine.status()["running"] == 1)
    site.engine.close()
    thread.join(PATIENCE_S)
    (response,) = answers
    if stream:
        *_, last = response.text.strip().split("\n\n")
        assert '"code":"engine_closed"' in last
        assert "[DONE]" not in response.text
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_closed")


def test_a_request_that_fails_is_500_or_the_last_event(site: Site) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    engine, submit = site.engine, site.engine.submit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            engine, "submit", lambda prompt, **o: submit(prompt, **{**o, "on_token": fails})
        )
        status, error = site.refusal(CHAT)
        assert (status, error["type"], error["code"]) == (500, "server_error", "request_failed")
        assert "on_token callback raised ZeroDivisionError" in error["message"]
        streamed = site.post(CHAT, stream=True).text
    assert '"code":"request_failed"' in streamed.strip().split("\n\n")[-1]


def test_errors_of_the_engine_have_their_status() -> None:
    cases = {
        InvalidRequest("mode mtp cannot be had: why"): (400, "generation_mode"),
        InvalidRequest("logit_bias must be of token ids below 5"): (400, "logit_bias"),
        InvalidRequest("caches of 9 tokens take 5 MB"): (400, "max_tokens"),
        InvalidRequest("the prompt is empty"): (400, "prompt"),
        EngineClosed("gone"): (503, None),
        RequestTimeout("late"): (504, None),
        RequestFailed("broken"): (500, None),
    }
    for error, (status, param) in cases.items():
        found = of_engine(error, "prompt")
        assert (found.status, found.param) == (status, param)
        assert list(found.body()["error"]) == ["message", "type", "param", "code"]


def test_who_comes_too_early_is_told_when_to_come_back() -> None:
    for error, code, seconds in (
        (QueueFull("9 requests wait"), "queue_full", "1"),
        (ModelLoading("a is being loaded"), "model_loading", "5"),
    ):
        answer = of_engine(error).response()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, seconds)
        assert f'"code":"{code}"'.encode() in answer.body
    assert "retry-after" not in of_engine(EngineClosed("gone")).response().headers


def test_options_reach_the_engine_under_its_own_names() -> None:
    engine = cast(Engine, SimpleNamespace(facts=SimpleNamespace(context_length=1000)))

    def options(**fields: Any) -> dict[str, Any]:
        asked = ChatRequest.model_validate(body(CHAT, **fields))
        (found,) = options_of(asked, engine, hyper=False)
        return found

    plain = {"max_tokens": 12, "temperature": 0, "stop": (), "seed": None, "hyper": False}
    assert options() == plain
    assert options(max_tokens=None)["max_tokens"] == 1000
    same = {
        "priority": 4,
        "depth": 2,
        "acceptance": "block",
        "min_p": 0.1,
        "top_k": 5,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "ignore_eos": True,
    }
    assert options(**same) == {**plain, **same}
    assert options(generation_mode="ar") == {**plain, "mode": "ar"}
    assert options(top_p=0, top_k=9) == {**plain, "top_k": 1}
    assert options(logit_bias={"5": 2}) == {**plain, "logit_bias": {5: 2.0}}
    assert options(logprobs=True, top_logprobs=4) == {**plain, "logprobs": 4}
    assert options(stop="a")["stop"] == ("a",)
