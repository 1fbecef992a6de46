"""Hyper parity in %mtplx verify: exact engines pass, broken ones fail, the mode comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.checks import hyper_parity, margins
from mtplx_kernel.checks.comparing import Result
from mtplx_kernel.checks.hyper_parity import SWITCHED
from mtplx_kernel.checks.rounds import scheduler_put_back
from mtplx_kernel.checks.verify import verify
from mtplx_kernel.checks.verify_report import VerifyReport
from mtplx_kernel.decoding.flight import Flight, Verdict
from mtplx_kernel.decoding.forking import ForkingStep
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.forking import ForkExecutor
from mtplx_kernel.engine.request import FinishReason, Handle
from mtplx_kernel.errors import EngineClosed
from mtplx_kernel.scheduling.hyper import HyperWidths
from tests.checks.conftest import TWINS

GREEDY: dict[str, Any] = {"prompts": 1, "max_tokens": 8, "temperature": 0}
Narrowed = list[tuple[Row, Verdict, Verdict]]
Spy = Callable[[Engine, Handle], object]


@pytest.fixture(autouse=True)
def serial_again(headed: Engine) -> Iterator[None]:
    yield
    headed.configure(scheduler="serial")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scheduler of each request."""
    found: list[str] = []
    on_submit(monkeypatch, lambda engine, _: found.append(engine.scheduler))
    return found


def on_submit(monkeypatch: pytest.MonkeyPatch, spy: Spy) -> None:
    submit = Engine.submit

    def spied(self: Engine, prompt: Any, **options: Any) -> Handle:
        handle = submit(self, prompt, **options)
        spy(self, handle)
        return handle

    monkeypatch.setattr(Engine, "submit", spied)


def under_hyper(engine: Engine, monkeypatch: pytest.MonkeyPatch, swap: dict[int, int]) -> None:
    """Change tokens that are read under hyper, and only there."""
    read = Flight.read

    def changed(self: Flight) -> list[Verdict]:
        verdicts = read(self)
        if engine.scheduler != "hyper":
            return verdicts
        return [replace(v, tokens=[swap.get(t, t) for t in v.tokens]) for v in verdicts]

    monkeypatch.setattr(Flight, "read", changed)


def results(report: VerifyReport) -> list[Result]:
    return [row.comparison.result for row in report.hyper.rows]


def text_of(report: VerifyReport) -> str:
    return " ".join(str(report).split())


def test_answers_alone_and_with_forks_are_held_against_those_of_serial(
    headed: Engine, asked: list[str]
) -> None:
    report = verify(headed, prompts=2, max_tokens=8, draws=0)
    assert report.verdict == (
        "verified: 4 of 4 answers equal in modes ar and mtp, 8 of 8 answers under hyper as under "
        "serial"
    )
    names = [(row.comparison.prompt, row.comparison.sampling.seed) for row in report.hyper.rows]
    assert names == 2 * [("chat-rain", 0), ("chat-rain", 1), ("code-words", 0), ("code-words", 2)]
    rows = report.hyper.rows
    assert [row.forked for row in rows] == [False] * 4 + [True] * 4
    # At a fixed depth the head drafts in every cycle, but for one before the last token.
    assert all(row.fork_attempts > 0 for row in rows[4:])
    assert all(row.comparison.tokens > 0 for row in rows)
    forks = sum(row.fork_attempts for row in rows)
    assert f"4 answers alone, 4 with forks of 2 rows ({forks} forks, of which " in text_of(report)
    # The answers in mode mtp are the reference: they came under serial.
    assert asked == ["serial"] * 8 + ["hyper"] * 8


def test_three_prompts_are_enough(headed: Engine) -> None:
    report = verify(headed, prompts=4, max_tokens=2, temperature=0)
    assert (len(report.rows), len(report.hyper.rows)) == (4, 6)


def test_from_another_mode_serial_is_asked_and_the_mode_comes_back(
    headed: Engine, asked: list[str]
) -> None:
    headed.configure(scheduler="mtp_batch", width=3, wait_ms=7)
    before = headed.status()["scheduler"]["settings"]
    assert verify(headed, **GREEDY).passed
    assert asked == ["mtp_batch", "mtp_batch", "serial", "hyper", "hyper"]
    assert headed.scheduler == "mtp_batch"
    assert headed.status()["scheduler"]["settings"] == before


def test_under_hyper_its_executor_comes_back(headed: Engine) -> None:
    headed.configure(scheduler="hyper")
    assert verify(headed, **GREEDY).passed
    assert headed.scheduler == "hyper"
    assert headed.gate.width_executor is None
    executor = headed.fork_executor(3)
    headed.gate.install_width_executor(executor)
    report = verify(headed, **GREEDY)
    assert [row.forked for row in report.hyper.rows] == [False, True]
    assert headed.gate.width_executor is executor


def test_a_fork_that_commits_a_wrong_token_fails(
    headed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrowed = ForkingStep._narrowed

    def wrong(self: ForkingStep, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Narrowed:
        kept = narrowed(self, rows, verdicts)
        if len(rows) == 1:
            return kept
        ((row, taken, own),) = kept
        *sure, last = taken.tokens
        return [(row, replace(taken, tokens=[*sure, (last + 1) % 250]), own)]

    monkeypatch.setattr(ForkingStep, "_narrowed", wrong)
    report = verify(headed, **GREEDY)
    assert not report.passed
    assert report.verdict == "FAILED: 1 of 2 answers under hyper are not those under serial"
    assert results(report) == [Result.EQUAL, Result.FAILED]
    parting = report.hyper.rows[1].comparison.divergence
    assert parting is not None
    assert (parting.position, parting.runs) == (0, ("serial", "hyper"))
    assert parting.margin > parting.tolerance == 0
    line = "Divergence: chat-rain, greedy, hyper with forks: token 0: serial "
    assert line in text_of(report)
    assert line in report._repr_html_()


def test_a_fork_that_keeps_the_wrong_twin_fails(
    headed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the drafts of the last twin for right, as if they had been accepted."""
    narrowed = ForkingStep._narrowed

    def trusting(self: ForkingStep, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Narrowed:
        if len(rows) == 1:
            return narrowed(self, rows, verdicts)
        return [
            (rows[0], replace(verdicts[-1], tokens=list(verdicts[-1].drafts)), verdicts[0]),
        ]

    monkeypatch.setattr(ForkingStep, "_narrowed", trusting)
    report = verify(headed, **GREEDY)
    assert results(report) == [Result.EQUAL, Result.FAILED]
    assert report.hyper.rows[1].comparison.problem is None


def test_hyper_that_is_wrong_alone_fails(headed: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    under_hyper(headed, monkeypatch, {token: (token + 1) % 250 for token in range(250)})
    report = verify(headed, **GREEDY)
    assert [row.result for row in report.rows] == [Result.EQUAL]
    assert results(report) == [Result.FAILED] * 2
    assert "Divergence: chat-rain, greedy, hyper: token 0: serial " in text_of(report)


@pytest.mark.parametrize(("rounding", "result"), [(2e-3, Result.NEAR_TIE), (0, Result.FAILED)])
def test_a_near_tie_is_told_from_a_mistake(
    twins: Callable[[float], Engine],
    monkeypatch: pytest.MonkeyPatch,
    rounding: float,
    result: Result,
) -> None:
    engine = twins(1 - 1e-5)
    monkeypatch.setattr(margins, "tolerance", lambda *facts: rounding)
    under_hyper(engine, monkeypatch, {TWINS[0]: TWINS[1], TWINS[1]: TWINS[0]})
    report = verify(engine, prompts=1, max_tokens=24, temperature=0)
    assert results(report) == [result] * 2
    assert report.passed is (result is Result.NEAR_TIE)
    if report.passed:
        assert report.verdict == (
            "verified: 1 of 1 answers equal in modes ar and mtp, 0 of 2 answers under hyper as "
            "under serial, 2 part at a near tie"
        )


def test_what_cannot_fork_says_why(headed: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = headed._owner.runner
    assert runner is not None
    monkeypatch.setitem(vars(runner), "unbatched", "its layers take one row")
    report = verify(headed, prompts=2, max_tokens=4, temperature=0)
    # The first refusal is enough.
    assert [row.declined for row in report.hyper.rows] == [None, None, "its layers take one row"]
    assert report.passed
    assert "3 answers alone; no forks: its layers take one row" in text_of(report)


def test_a_run_that_fails_is_a_finding(headed: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Flight.read

    def broken(self: Flight) -> list[Verdict]:
        if headed.scheduler == "hyper":
            raise ValueError("a broken verify")
        return read(self)

    monkeypatch.setattr(Flight, "read", broken)
    headed.configure(scheduler="cooperative", width=5)
    report = verify(headed, **GREEDY)
    assert results(report) == [Result.FAILED] * 2
    cause = "hyper with forks: the forward failed: ValueError: a broken verify"
    assert f"Problem: chat-rain, greedy, {cause}" in text_of(report)
    assert headed.scheduler == "cooperative"


def test_an_executor_that_loses_the_result_is_a_finding(
    headed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: ForkExecutor, plan: Any, singleton: Callable[[], Any]) -> Any:
        singleton()
        raise ValueError("a broken executor")

    monkeypatch.setattr(ForkExecutor, "run_cohort", lost)
    monkeypatch.setattr(hyper_parity, "PATIENCE_S", 0.3)
    report = verify(headed, **GREEDY)
    assert results(report) == [Result.EQUAL, Result.FAILED]
    assert "the width executor returned no result" in text_of(report)


@pytest.mark.parametrize("at", [1, 2], ids=["alone", "forks"])
def test_an_interrupt_puts_the_scheduler_back(
    headed: Engine, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    headed.configure(scheduler="cooperative", width=5)
    handles: list[Handle] = []

    def noting(engine: Engine, handle: Handle) -> None:
        if engine.scheduler == "hyper":
            handles.append(handle)

    result = Handle.result

    def interrupted(self: Handle) -> Any:
        if handles[at - 1 :] == [self]:
            raise KeyboardInterrupt
        return result(self)

    with monkeypatch.context() as patch:
        on_submit(patch, noting)
        patch.setattr(Handle, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verify(headed, prompts=1, max_tokens=100, temperature=0)
    status = headed.status()
    assert (status["running"], status["queue"]["waiting"]) == (0, 0)
    assert len(handles) == at
    assert handles[-1].result().finish_reason is FinishReason.INTERRUPTED
    assert headed.scheduler == "cooperative"
    assert status["scheduler"]["settings"]["width"] == 5


@pytest.fixture
def closable(headed: Engine) -> Iterator[Engine]:
    with mk.load(headed.facts.path, head="none") as engine:
        yield engine


def test_a_closed_engine_ends_the_check(closable: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def closing(engine: Engine, handle: Handle) -> None:
        if engine.scheduler == "hyper":
            engine.close()

    on_submit(monkeypatch, closing)
    with pytest.raises(EngineClosed, match="it was closed"):
        verify(closable, prompts=2, max_tokens=8, temperature=0)
    with pytest.raises(EngineClosed, match="it was closed"), scheduler_put_back(closable):
        pass


def test_nothing_is_put_back_where_the_engine_has_ended(closable: Engine) -> None:
    def interrupted() -> None:
        closable.close()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), scheduler_put_back(closable):
        interrupted()


def test_others_are_left_in_peace(headed: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    headed.configure(scheduler="cooperative")
    other = headed.submit("Once", max_tokens=1800, ignore_eos=True)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "configure", None)  # nobody calls it
        report = verify(headed, **GREEDY)
    assert not other.done
    other.cancel()
    other.result()
    assert (report.passed, report.hyper.rows) == (True, ())
    assert report.verdict == (
        "verified: 1 of 1 answers equal in modes ar and mtp, hyper parity not checked"
    )
    reason = "Hyper parity: not checked: the engine is busy (1 running, 0 waiting)"
    assert reason in text_of(report)


def test_who_comes_meanwhile_ends_the_check(
    headed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, others = Engine.submit, list[Handle]()

    def joined(engine: Engine, handle: Handle) -> None:
        if engine.scheduler == "hyper":
            others.append(submit(engine, "Once", max_tokens=1800, ignore_eos=True))

    on_submit(monkeypatch, joined)
    report = verify(headed, prompts=2, max_tokens=8, temperature=0)
    assert headed.scheduler == "serial"
    (other,) = others
    assert not other.done
    other.cancel()
    other.result()
    assert results(report) == [Result.EQUAL]
    assert report.hyper.left_out is not None
    assert report.hyper.left_out.startswith("the engine is busy (")
    assert "1 answers alone; the engine is busy (" in text_of(report)


def test_a_scheduler_that_someone_switches_ends_the_check(
    headed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = Engine.configure

    def overruled(self: Engine, **settings: Any) -> None:
        configure(self, **{**settings, "scheduler": "serial"})

    monkeypatch.setattr(Engine, "configure", overruled)
    report = verify(headed, **GREEDY)
    assert (report.hyper.rows, report.hyper.left_out) == ((), SWITCHED)


def test_without_the_gate_of_hyper_there_are_no_forks(
    headed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_executor = Engine.fork_executor

    def switching(self: Engine, width: int) -> ForkExecutor:
        self.configure(scheduler="cooperative")
        return fork_executor(self, width)

    monkeypatch.setattr(Engine, "fork_executor", switching)
    report = verify(headed, **GREEDY)
    assert (results(report), report.hyper.left_out) == ([Result.EQUAL], SWITCHED)
    assert headed.scheduler == "serial"


def test_an_executor_that_someone_takes_away_ends_the_check(
    headed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HyperWidths, "install_width_executor", lambda self, executor: None)
    report = verify(headed, **GREEDY)
    assert results(report) == [Result.EQUAL]
    assert report.hyper.left_out == "someone else changed the width executor"
