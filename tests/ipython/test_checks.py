"""The checks in a shell: what they are asked, what they show, how they end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import mtplx_kernel as mk
from mtplx_kernel.checks.bench_report import BenchReport
from mtplx_kernel.checks.tune_report import TuneReport
from mtplx_kernel.checks.verify_report import VerifyReport
from mtplx_kernel.prompt_magics import GenerationInterrupted
from tests.ipython.conftest import Bench

Shown = Callable[[], str]


@pytest.fixture
def tiny(tiny_folder: Path) -> Iterator[mk.Engine]:
    with mk.load(tiny_folder) as engine:
        yield engine


@pytest.fixture
def ready(bench: Bench, tiny: mk.Engine, shown: Shown) -> Bench:
    """A bench on which a real engine is loaded."""
    bench.loadable["tiny"] = tiny
    bench.run("%mtplx load tiny")
    shown()
    return bench


def test_verify_shows_its_verdict_and_is_the_value(ready: Bench, shown: Shown) -> None:
    report = ready.run("%mtplx verify --prompts 1 --max-tokens 4 --draws 2 --depth 2")
    assert isinstance(report, VerifyReport)
    text = shown()
    assert text.startswith("Out[2]: \nverified: 2 of 2 answers equal in modes ar and mtp, ")
    assert "chat-rain  greedy           2      4" in text
    assert ready.run("%mtplx verify --prompts 1 --max-tokens 2 --draws 0;") is None
    assert shown() == ""


def test_tune_puts_the_best_in_force_and_forgets_it(
    ready: Bench, tiny: mk.Engine, shown: Shown
) -> None:
    report = ready.run("%mtplx tune --prompts 1 --max-tokens 18 --max-depth 1")
    assert isinstance(report, TuneReport)
    assert "best: " in shown()
    assert tiny.default_depth == report.best.depth
    assert ready.run("%mtplx tune --forget") is None
    assert shown() == "The tuning is forgotten: the engine chooses the depth itself.\n"
    assert tiny.default_depth is None
    kept = ready.run("%mtplx tune --prompts 1 --max-tokens 18 --max-depth 1 --no-keep").kept
    assert kept == "as before: nothing was kept (--no-keep)"
    assert tiny.default_depth is None


def test_bench_compares_and_puts_the_scheduler_back(
    ready: Bench, tiny: mk.Engine, shown: Shown
) -> None:
    ready.run("%mtplx scheduler cooperative")
    shown()
    report = ready.run("%mtplx bench --clients 2 --modes hyper,serial --prompts 1 --max-tokens 18")
    assert isinstance(report, BenchReport)
    assert [row.mode for row in report.rows] == ["serial", "hyper"]
    text = shown()
    assert "best with 2 clients: " in text
    assert "In force:     cooperative, as before" in text
    assert tiny.scheduler == "cooperative"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench --clients 0", "--clients must be a whole number from 1 to 64, not 0"),
        ("bench --max-tokens 3", "--max-tokens must be a whole number at least 18, not 3"),
        (
            "bench --modes serial,,",
            "scheduler '' is no scheduler; allowed: serial, cooperative, ar_batch, mtp_batch, "
            "mtp_cohort_experimental, hyper",
        ),
        ("verify --prompts 9", "--prompts must be a whole number from 1 to 8, not 9"),
        ("verify --draws x", "--draws must be a whole number at least 0, not 'x'"),
        ("verify --temperature -1", "--temperature must be a number from 0 to 100, not -1.0"),
        ("verify --depth 99", "--depth must be a whole number from 0 to 16, not 99"),
        ("verify now", "'now' is one word too many; write %mtplx verify [options]"),
        ("tune --max-depth 0", "--max-depth must be a whole number from 1 to 16, not 0"),
        ("tune --max-tokens 3", "--max-tokens must be a whole number at least 18, not 3"),
        ("tune --keep --no-keep", "--keep and --no-keep exclude each other"),
        ("tune --forget --prompts 2", "--forget stands alone: it measures nothing"),
    ],
)
def test_mistakes_are_one_line(loaded: Bench, shown: Shown, line: str, message: str) -> None:
    assert isinstance(loaded.run(f"%mtplx {line}"), UsageError)
    assert shown() == f"UsageError: {message}\n"


@pytest.mark.parametrize("verb", ["verify", "tune", "tune --forget", "bench"])
def test_without_a_model_the_line_says_how_to_load_one(
    bench: Bench, shown: Shown, verb: str
) -> None:
    bench.run(f"%mtplx {verb}")
    assert shown() == ("UsageError: no model is loaded; load one: %mtplx load smollm2-135m\n")


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("verify", "Interrupted: nothing was verified."),
        ("tune", "Interrupted: the depth in force is as before."),
        ("bench --clients 1", "Interrupted: the scheduler is as before."),
    ],
)
def test_an_interrupt_ends_the_request_and_the_check_in_one_line(
    ready: Bench,
    tiny: mk.Engine,
    shown: Shown,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    line: str,
) -> None:
    submit = mk.Engine.submit
    asked: list[mk.Handle] = []
    tokens: list[int] = []

    def interrupt_once(token: int, text: str) -> None:
        tokens.append(token)
        if len(tokens) == 1:
            signal.raise_signal(signal.SIGINT)

    def interrupted(self: mk.Engine, prompt: Any, **options: Any) -> mk.Handle:
        endless = {**options, "max_tokens": 50_000, "ignore_eos": True}
        asked.append(submit(self, prompt, on_token=interrupt_once, **endless))
        return asked[-1]

    monkeypatch.setattr(mk.Engine, "submit", interrupted)
    assert isinstance(ready.run(f"%mtplx {verb}"), GenerationInterrupted)
    assert shown() == f"{line}\n"
    (handle,) = asked
    assert str(handle.result(timeout=60).finish_reason) == "interrupted"
    status = tiny.status()
    assert (status["running"], status["queue"]["waiting"]) == (0, 0)
