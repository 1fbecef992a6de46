"""Every scheduler mode through the engine: the ids of serial, whoever joins, leaves or fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import mtplx_kernel as mk
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.request import FinishReason, Generation, Handle
from mtplx_kernel.errors import InvalidRequest, RequestFailed
from mtplx_kernel.scheduling.modes import SchedulerMode
from tests.engine.conftest import CONTEXT, PROBE
from tests.engine.gates import PATIENCE_S, Gate, on_owner

SETTINGS: dict[str, dict[str, Any]] = {
    "serial": {},
    "cooperative": {"width": 4},
    "ar_batch": {"width": 4},
    "mtp_batch": {"width": 4, "wait_ms": 2},
    "mtp_cohort_experimental": {"width": 4, "wait_ms": 2, "experimental": True},
    "hyper": {},
}
MODES = list(SchedulerMode)


def asks() -> list[tuple[list[int], dict[str, Any]]]:
    """Requests that differ in everything: prompts, samplers, seeds, depths, penalties, ends."""
    found: list[tuple[list[int], dict[str, Any]]] = []
    for i in range(14):
        prompt = [(i * 7 + j * j) % 250 for j in range(1 + 11 * (i % 4))]
        options: dict[str, Any] = {
            "max_tokens": 3 + 5 * (i % 5),
            "temperature": (0.0, 0.7, 1.0)[i % 3],
            "seed": i,
            "depth": (None, 0, 3)[i % 3],
        }
        if i % 4 == 1:
            options["repetition_penalty"] = 1.3
        if i % 5 == 2:
            options["mode"] = "ar"
        if i % 7 == 3:
            options["stop_token_ids"] = list(range(0, 250, 9))
        found.append((prompt, options))
    return found


@pytest.fixture(scope="module")
def served(tiny_folder: Path) -> Iterator[Engine]:
    with mk.load(str(tiny_folder), prefix_cache_mb=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(served: Engine) -> list[Generation]:
    """What serial answers, one request after the other."""
    return [served.generate(prompt, **options) for prompt, options in asks()]


@pytest.fixture
def modal(served: Engine) -> Iterator[Engine]:
    """The engine, back in serial and empty after each test."""
    yield served
    served.configure(scheduler="serial")
    status = served.status()
    assert (status["state"], status["running"], status["queue"]["waiting"]) == ("running", 0, 0)
    assert on_owner(served, lambda runner: runner.step.caches.slots) == 1


def submit_all(engine: Engine) -> list[Handle]:
    return [engine.submit(prompt, **options) for prompt, options in asks()]


def check(handles: list[Handle], expected: list[Generation]) -> None:
    for handle, serial in zip(handles, expected, strict=True):
        found = handle.result(PATIENCE_S)
        assert (found.token_ids, found.text) == (serial.token_ids, serial.text)
        assert found.finish_reason == serial.finish_reason


@pytest.mark.parametrize("mode", MODES)
def test_ids_are_those_of_serial(modal: Engine, expected: list[Generation], mode: str) -> None:
    modal.configure(scheduler=mode, **SETTINGS[mode])
    assert modal.scheduler == mode
    handles = submit_all(modal)
    check(handles, expected)
    assert {h.result().stats.scheduler_mode for h in handles} == {mode}
    block = modal.status()["scheduler"]
    assert block["mode"] == mode
    assert block[mode]["last_error"] is None


@pytest.mark.parametrize("mode", ["ar_batch", "mtp_batch", "mtp_cohort_experimental"])
def test_rows_share_forwards(modal: Engine, mode: str) -> None:
    modal.configure(scheduler=mode, **SETTINGS[mode])
    found = modal.generate_batch([PROBE] * 4, max_tokens=12, ignore_eos=True)
    stats = [each.stats for each in found if isinstance(each, Generation)]
    assert len(stats) == 4
    widths = modal.status()["scheduler"][mode]["batch_histogram"]
    assert max(widths) > 1
    assert len({each.token_ids for each in found if isinstance(each, Generation)}) == 1
    for each in stats:
        if mode == "ar_batch":
            assert each.generation_mode == "ar"
            assert each.mtp_disabled_reason is not None
            assert each.verify_calls == 12
            assert each.drafted_by_depth is None
            assert each.cohort_id is None
        else:
            assert each.generation_mode == "mtp"
            assert each.mtp_disabled_reason is None
            assert each.cohort_id is not None
            assert each.mtp_batch_real_width is not None
            assert each.mtp_batch_fixed_width is not None
            assert each.mtp_batch_real_width <= each.mtp_batch_fixed_width
    cohorts = modal.timeline.cohorts()
    if mode != "ar_batch":
        assert cohorts[-1].cohort_id == stats[-1].cohort_id
        assert cohorts[-1].ended is not None
        assert cohorts[-1].sealed <= cohorts[-1].ended


def test_a_hundred_switches_under_load(modal: Engine, expected: list[Generation]) -> None:
    handles: list[Handle] = []
    wanted: list[Generation] = []
    requests = asks()
    for i in range(100):
        mode = MODES[i % len(MODES)]
        modal.configure(scheduler=mode, **SETTINGS[mode])
        prompt, options = requests[i % len(requests)]
        handles.append(modal.submit(prompt, **options))
        wanted.append(expected[i % len(requests)])
    check(handles, wanted)
    assert len({h.result().stats.scheduler_mode for h in handles}) > 1


def test_what_runs_finishes_under_its_own_mode(modal: Engine) -> None:
    gate = Gate(at=2)
    first = modal.submit(PROBE, max_tokens=9, ignore_eos=True, on_token=gate)
    waiting = modal.submit(PROBE, max_tokens=9, ignore_eos=True)
    gate.await_reached()
    switch = threading.Thread(
        target=lambda: modal.configure(scheduler="ar_batch", **SETTINGS["ar_batch"])
    )
    switch.start()
    gate.open()
    switch.join(PATIENCE_S)
    found = [h.result(PATIENCE_S) for h in (first, waiting)]
    assert [f.stats.scheduler_mode for f in found] == ["serial", "ar_batch"]
    assert found[0].token_ids == found[1].token_ids


@pytest.mark.parametrize("mode", MODES)
def test_cancels_at_every_stage_leave_the_others(
    modal: Engine, expected: list[Generation], mode: str
) -> None:
    modal.configure(scheduler=mode, **SETTINGS[mode])
    long: dict[str, Any] = {"max_tokens": 5_000, "ignore_eos": True}
    gate = Gate(at=2)
    decoding = modal.submit(PROBE, on_token=gate, **long)
    gate.await_reached()
    prefilling = modal.submit([1, 2, 3, 4] * (CONTEXT // 8), **long)
    waiting = [modal.submit(PROBE, **long) for _ in range(3)]
    handles = submit_all(modal)
    for each in (*waiting, prefilling):
        each.cancel()
    gate.open()
    decoding.cancel()
    for each in (decoding, prefilling, *waiting):
        assert each.result(PATIENCE_S).finish_reason is FinishReason.CANCELLED
    check(handles, expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_forward_ends_its_rows_only(
    modal: Engine, expected: list[Generation], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    alone = {"prefill_cap": 1} if "width" in SETTINGS[mode] and mode != "cooperative" else {}
    modal.configure(scheduler=mode, **SETTINGS[mode], **alone)
    runner = modal._owner.runner
    assert runner is not None
    forward = runner.step.target.forward

    used = {i for prompt, _ in asks() for i in prompt} | {i for e in expected for i in e.token_ids}
    marker = min(set(range(250)) - used - set(PROBE))

    def failing(tokens: mx.array, cache: Any) -> mx.array:
        if bool(mx.any(tokens == marker)):
            raise RuntimeError("no memory")
        return forward(tokens, cache)

    monkeypatch.setattr(runner.step.target, "forward", failing)
    bad = modal.submit([marker, *PROBE, *PROBE], max_tokens=4)
    handles = submit_all(modal)
    with pytest.raises(RequestFailed, match="no memory"):
        bad.result(PATIENCE_S)
    check(handles, expected)
    assert "no memory" in modal.status()["scheduler"][mode]["last_error"]


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_lost_their_caches_are_fed_again(
    modal: Engine, expected: list[Generation], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Buffers that depend on a failed forward are dropped: no other row may notice."""
    modal.configure(scheduler=mode, **SETTINGS[mode])
    runner = modal._owner.runner
    assert runner is not None
    step, cycle, cycles = runner.step, runner.step.cycle, []

    def failing(rows: Any, **options: Any) -> Any:
        cycles.append(len(rows))
        if len(cycles) == 4:
            step.caches.drop()
            monkeypatch.setattr(step, "recover", lambda: False)
            raise RuntimeError("no memory")
        monkeypatch.undo() if len(cycles) > 4 else None
        return cycle(rows, **options)

    monkeypatch.setattr(step, "cycle", failing)
    handles = submit_all(modal)
    failed = 0
    for handle, serial in zip(handles, expected, strict=True):
        handle.wait(PATIENCE_S)
        if handle.window.finish_reason == "error":
            with pytest.raises(RequestFailed, match="no memory"):
                handle.result()
            failed += 1
        else:
            assert handle.result().token_ids == serial.token_ids
    assert failed == cycles[3]


@pytest.mark.parametrize("mode", MODES)
def test_a_callback_that_raises_ends_its_row_only(
    modal: Engine, expected: list[Generation], mode: str
) -> None:
    def refuse(token: int, text: str) -> None:
        raise ValueError("enough")

    modal.configure(scheduler=mode, **SETTINGS[mode])
    bad = modal.submit(PROBE, max_tokens=40, ignore_eos=True, on_token=refuse)
    handles = submit_all(modal)
    with pytest.raises(RequestFailed, match="on_token callback raised ValueError: enough"):
        bad.result(PATIENCE_S)
    check(handles, expected)


def test_bad_settings_change_nothing(modal: Engine) -> None:
    for settings, line in (
        ({"scheduler": "fifo"}, "scheduler 'fifo' is no scheduler; allowed: serial, "),
        ({"scheduler": "mtp_batch", "width": 0}, "width must be a whole number, 1 to 64, not 0"),
        ({"width": 4}, "scheduler 'serial' does not take width; allowed: no options"),
        ({"scheduler": "hyper", "width": 2}, "'hyper' is not tunable"),
        ({"scheduler": "mtp_cohort_experimental"}, "is experimental and off; to opt in"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            modal.configure(**settings)
        assert line in str(caught.value)
        assert modal.scheduler == modal.status()["scheduler"]["mode"] == "serial"


def test_settings_stay_while_the_mode_does(modal: Engine) -> None:
    modal.configure(scheduler="mtp_batch", width=4, wait_ms=7)
    modal.configure(max_wait_ms=900)
    settings = modal.status()["scheduler"]["settings"]
    assert (settings["width"], settings["wait_ms"], settings["max_wait_ms"]) == (4, 7, 900)
    modal.configure(scheduler="ar_batch")
    assert modal.status()["scheduler"]["settings"]["width"] == 8


def test_priorities_and_the_prefix_cache_are_checked(modal: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"^priority must be a number from 0.01 to 100, not 0"):
        modal.submit(PROBE, priority=0)
    with pytest.raises(InvalidRequest, match=r"^prefix_cache must be True or False, not 1$"):
        modal.submit(PROBE, prefix_cache=1)


@pytest.mark.parametrize("mode", MODES)
def test_a_close_with_drain_finishes_all(
    tiny_folder: Path, expected: list[Generation], mode: str
) -> None:
    engine = mk.load(str(tiny_folder), scheduler=mode, **SETTINGS[mode])
    handles = submit_all(engine)
    engine.close(drain=True)
    check(handles, expected)
    other = mk.load(str(tiny_folder), scheduler=mode, **SETTINGS[mode])
    handles = [other.submit(PROBE, max_tokens=5_000, ignore_eos=True) for _ in range(6)]
    other.close()
    assert {h.result(PATIENCE_S).finish_reason for h in handles} == {FinishReason.CANCELLED}
