"""%mtplx bench on a real engine: what is run, compared, and put back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from mtplx_kernel.checks import bench as benching
from mtplx_kernel.checks.bench import Run, bench
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.request import FinishReason, Generation, Handle
from mtplx_kernel.engine.stats import GenerationStats
from mtplx_kernel.engine.timeline import DecodeWindow
from mtplx_kernel.errors import InvalidRequest, RequestFailed

SMALL: dict[str, Any] = {"clients": 2, "prompts": 1, "max_tokens": 18}
ROUNDS = 1
ASKED = 4
"""Questions of a run: two clients ask two each."""
ALL = ["serial", "cooperative", "ar_batch", "mtp_batch", "hyper"]


@pytest.fixture(autouse=True)
def quick_and_serial_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(benching, "ROUNDS", ROUNDS)
    yield
    engine.configure(scheduler="serial")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The scheduler and the options of each request."""
    found: list[tuple[str, dict[str, Any]]] = []
    submit = Engine.submit

    def spied(self: Engine, prompt: Any, **options: Any) -> Handle:
        found.append((self.scheduler, options))
        return submit(self, prompt, **options)

    monkeypatch.setattr(Engine, "submit", spied)
    return found


def test_every_mode_is_measured_and_gives_the_same_answers(engine: Engine) -> None:
    engine.configure(scheduler="mtp_batch", width=3, wait_ms=7)
    before = engine.status()["scheduler"]["settings"]
    report = bench(engine, **SMALL)
    assert [row.mode for row in report.rows] == ALL
    assert {(row.answers, row.equal) for row in report.rows} == {(ASKED * ROUNDS,) * 2}
    serial = report.rows[0]
    assert serial.ratio == 1.0
    assert all(row.tok_s > 0 and row.stream_tok_s > 0 and row.ttft_s > 0 for row in report.rows)
    by_mode = {row.mode: row for row in report.rows}
    assert by_mode["ar_batch"].tokens_per_cycle == 1.0
    assert (report.missing, report.in_force) == ((), "mtp_batch")
    assert engine.scheduler == "mtp_batch"
    assert engine.status()["scheduler"]["settings"] == before


def test_the_modes_take_turns_and_the_prefix_cache_is_left_out(
    engine: Engine, asked: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching, "ROUNDS", 3)
    bench(engine, modes=["hyper", "serial", "hyper"], clients=1, prompts=1, max_tokens=18)
    turns = ["serial", "hyper", "hyper", "serial", "hyper", "serial"]
    # A client asks two questions a round, and one to warm up.
    assert [mode for mode, _ in asked] == ["serial", "hyper", *(m for m in turns for _ in "12")]
    assert all(o["ignore_eos"] and o["prefix_cache"] is False for _, o in asked)


def test_clients_ask_again_when_they_have_their_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_requests: list[int] = []
    submit = Engine.submit

    def spied(self: Engine, prompt: Any, **options: Any) -> Handle:
        handle = submit(self, prompt, **options)
        status = self.status()
        open_requests.append(status["running"] + status["queue"]["waiting"])
        return handle

    monkeypatch.setattr(Engine, "submit", spied)
    bench(engine, modes=["serial"], clients=3, prompts=1, max_tokens=18)
    assert max(open_requests) <= 3
    assert len(open_requests) == 3 + ROUNDS * 6


def test_a_width_for_all_clients(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    configure = Engine.configure

    def spied(self: Engine, **settings: Any) -> None:
        told.append(settings)
        configure(self, **settings)

    monkeypatch.setattr(Engine, "configure", spied)
    for clients in (2, 9):
        asking = benching._Clients(engine, clients, 18, False, lambda: None)
        asking._take("ar_batch")
    asking._take("hyper")
    assert told == [
        {"scheduler": "ar_batch", "width": 8},
        {"scheduler": "ar_batch", "width": 9},
        {"scheduler": "hyper"},
    ]


def test_the_experimental_mode_needs_an_opt_in(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MTPLX_KERNEL_EXPERIMENTAL_COHORTS", raising=False)
    mode = "mtp_cohort_experimental"
    with pytest.raises(InvalidRequest, match="is experimental and off"):
        bench(engine, modes=[mode], **SMALL)
    assert engine.scheduler == "serial"
    report = bench(engine, modes=[mode], experimental=True, **SMALL)
    assert [row.mode for row in report.rows] == ["serial", mode]
    assert report.rows[1].equal == ASKED * ROUNDS
    assert benching._wanted(None, experimental=True) == [*ALL[:4], mode, "hyper"]


def test_modes_that_cannot_be_had_are_left_out_or_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = Engine.configure

    def refusing(self: Engine, **settings: Any) -> None:
        if settings["scheduler"] in ("ar_batch", "mtp_batch", "cooperative"):
            raise InvalidRequest(f"scheduler {settings['scheduler']} cannot be had: a reason")
        configure(self, **settings)

    monkeypatch.setattr(Engine, "configure", refusing)
    report = bench(engine, **SMALL)
    assert [row.mode for row in report.rows] == ["serial", "hyper"]
    assert report.missing == tuple(f"scheduler {m} cannot be had: a reason" for m in ALL[1:4])
    with pytest.raises(InvalidRequest, match=r"^scheduler ar_batch cannot be had: a reason$"):
        bench(engine, modes=["ar_batch"], **SMALL)


def test_an_interrupt_or_a_failure_puts_the_mode_back_and_ends_the_requests(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.configure(scheduler="cooperative", width=5)
    handles: list[Handle] = []
    submit = Engine.submit

    def interrupted(self: Engine, prompt: Any, **options: Any) -> Handle:
        if len(handles) == 1:
            raise KeyboardInterrupt
        handles.append(submit(self, prompt, **options))
        return handles[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench(engine, clients=2, prompts=1, max_tokens=1000)
    assert handles[0].result(timeout=60).finish_reason is FinishReason.INTERRUPTED

    def broken(*rows: Any, **options: Any) -> Any:
        raise ValueError("a broken step")

    runner = engine._owner.runner
    assert runner is not None
    with monkeypatch.context() as patch:
        patch.setattr(runner.step, "cycle", broken)
        with pytest.raises(RequestFailed, match="a broken step"):
            bench(engine, **SMALL)
    status = engine.status()
    assert (status["running"], status["queue"]["waiting"]) == (0, 0)
    assert engine.scheduler == "cooperative"
    assert status["scheduler"]["settings"]["width"] == 5


def test_a_busy_engine_is_refused(engine: Engine) -> None:
    handle = engine.submit("Once", max_tokens=1500, ignore_eos=True)
    try:
        with pytest.raises(InvalidRequest, match=r"^the engine is busy \(. running, . waiting\); "):
            bench(engine, **SMALL)
    finally:
        handle.cancel()
        handle.result()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"clients": 0}, "clients must be a whole number from 1 to 64, not 0"),
        ({"clients": "x"}, "clients must be a whole number from 1 to 64, not 'x'"),
        ({"prompts": 9}, "prompts must be a whole number from 1 to 8, not 9"),
        ({"max_tokens": 17}, "max_tokens must be a whole number at least 18, not 17"),
        (
            {"modes": ["fast"]},
            "scheduler 'fast' is no scheduler; allowed: serial, cooperative, ar_batch, mtp_batch, "
            "mtp_cohort_experimental, hyper",
        ),
    ],
)
def test_bad_options_are_refused(engine: Engine, option: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(message)}$"):
        bench(engine, **option)


def made(submitted: float, first: float, ended: float, ids: tuple[int, ...]) -> Generation:
    """An answer whose tokens came one by one."""
    window = DecodeWindow("req-1", submitted, first_token=first, ended=ended, first_block=1)
    window.completion_tokens = window.verify_calls = len(ids)
    return Generation(
        request_id="req-1",
        text="",
        token_ids=ids,
        finish_reason=FinishReason.LENGTH,
        stats=GenerationStats.of(window, 0),
        window=window,
    )


def test_a_row_is_of_medians_and_counts_equal_answers() -> None:
    # Serial: 10 tokens in 10 s, twice. The other: the same tokens in 4 s and in 5 s.
    ids = (1, 2, 3, 4, 5)
    serial = Run((made(0, 1, 5, ids), made(0, 6, 10, ids)))
    runs = {
        "serial": [serial, serial],
        "other": [
            Run((made(0, 1, 3, ids), made(0, 2, 4, ids))),
            Run((made(0, 1, 5, ids), made(0, 1, 5, (1, 2, 3, 4, 6)))),
        ],
    }
    row = benching._row("serial", runs)
    assert (row.tok_s, row.ratio, row.stream_tok_s, row.ttft_s) == (1.0, 1.0, 1.0, 3.5)
    row = benching._row("other", runs)
    assert (row.tok_s, row.ratio) == (2.25, 2.25)
    # Four more tokens in 2, 2, 4 and 4 s.
    assert (row.stream_tok_s, row.ttft_s) == (1.5, 1.0)
    assert (row.answers, row.equal, row.tokens_per_cycle) == (4, 3, 1.0)
