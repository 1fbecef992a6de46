"""%mtplx scheduler: what is shown, what is switched, what is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from mtplx_kernel import report
from mtplx_kernel.scheduling.options import OPT_IN_VARIABLE
from tests.ipython.conftest import Bench
from tests.ipython.scripted import ScriptedEngine

Shown = Callable[[], str]


@pytest.fixture(autouse=True)
def not_opted_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPT_IN_VARIABLE, raising=False)


def test_it_shows_the_mode_in_force(loaded: Bench, shown: Shown) -> None:
    assert loaded.run("%mtplx scheduler") is None
    assert shown() == (
        "Scheduler:    serial\nQueue:        0 running, 0 waiting, at most 256 may wait\n"
    )
    assert (loaded.engine.scheduler, loaded.engine.settings) == ("serial", {})


def test_it_switches_and_shows_what_came_of_it(loaded: Bench, shown: Shown) -> None:
    loaded.run(
        "%mtplx scheduler mtp_batch --width 4 --wait-ms 20 --max-wait-ms 1e3 --prefill-cap 3 "
        "--itl-ms 50 --sealed"
    )
    assert loaded.engine.scheduler == "mtp_batch"
    assert loaded.engine.settings == {
        "width": 4,
        "wait_ms": 20.0,
        "max_wait_ms": 1000.0,
        "prefill_cap": 3,
        "itl_ms": 50.0,
        "sealed": True,
    }
    assert shown().splitlines()[:-1] == [
        "Switching to mtp_batch ...",
        "Scheduler:    mtp_batch (width 4, wait 20 ms, max wait 1000 ms, prefill cap 3,",
        "              sealed, itl 50 ms)",
    ]


def test_options_alone_are_for_the_mode_in_force(loaded: Bench) -> None:
    loaded.run("%mtplx scheduler cooperative --ttft-ms 500")
    loaded.run("%mtplx scheduler --itl-ms 80")
    assert (loaded.engine.scheduler, loaded.engine.settings) == ("cooperative", {"itl_ms": 80.0})
    loaded.run("%mtplx scheduler mtp_batch --refill")
    assert loaded.engine.settings == {"sealed": False}


def test_the_experimental_mode_needs_an_opt_in(
    loaded: Bench, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(loaded.run("%mtplx scheduler mtp_cohort_experimental"), UsageError)
    assert shown() == (
        "UsageError: scheduler 'mtp_cohort_experimental' is experimental and off; to opt in, give "
        "experimental=True or --experimental-cohorts, or set MTPLX_KERNEL_EXPERIMENTAL_COHORTS=1\n"
    )
    loaded.run("%mtplx scheduler mtp_cohort_experimental --experimental-cohorts --width 2")
    assert loaded.engine.settings == {"width": 2, "experimental": True}
    assert "\nScheduler:    mtp_cohort_experimental (width 2, wait 5 ms, " in shown()
    loaded.run("%mtplx scheduler serial")
    monkeypatch.setenv(OPT_IN_VARIABLE, "1")
    loaded.run("%mtplx scheduler mtp_cohort_experimental")
    assert loaded.engine.scheduler == "mtp_cohort_experimental"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "scheduler fast",
            "scheduler 'fast' is no scheduler; allowed: serial, cooperative, ar_batch, mtp_batch, "
            "mtp_cohort_experimental, hyper",
        ),
        ("scheduler mtp_batch --width 0", "--width must be a whole number, 1 to 64, not 0"),
        ("scheduler mtp_batch --width x", "--width must be a whole number, 1 to 64, not 'x'"),
        (
            "scheduler mtp_batch --wait-ms 50 --max-wait-ms 1",
            "--max-wait-ms must be at least wait_ms (50), not 1.0",
        ),
        (
            "scheduler ar_batch --prefill-cap 0",
            "--prefill-cap must be a whole number, 1 or more, not 0",
        ),
        (
            "scheduler ar_batch --itl-ms 0",
            "--itl-ms must be a number of milliseconds, above 0, at most 3600000, not 0.0",
        ),
        ("scheduler --width 4", "scheduler 'serial' does not take width; allowed: no options"),
        (
            "scheduler hyper --width 4",
            "scheduler 'hyper' is not tunable: it runs one request at a time, alone and at once, "
            "so width=4 is refused; allowed: no options",
        ),
        ("scheduler mtp_batch --sealed --refill", "--sealed and --refill exclude each other"),
        (
            "scheduler serial hyper",
            "'hyper' is one word too many; write %mtplx scheduler [NAME] [options]",
        ),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(
    loaded: Bench, shown: Shown, line: str, message: str
) -> None:
    assert isinstance(loaded.run(f"%mtplx {line}"), UsageError)
    assert shown().splitlines()[-1] == f"UsageError: {message}"
    assert (loaded.engine.scheduler, loaded.engine.settings) == ("serial", {})


def test_load_takes_the_scheduler_and_the_prefix_cache(bench: Bench, shown: Shown) -> None:
    bench.loadable["scripted"] = ScriptedEngine()
    bench.run(
        "%mtplx load scripted --scheduler mtp_batch --width 4 --refill --prefix-cache-mb 64 "
        "--experimental-cohorts"
    )
    assert bench.loads == [
        (
            "scripted",
            {
                "scheduler": "mtp_batch",
                "width": 4,
                "sealed": False,
                "prefix_cache_mb": 64.0,
                "experimental": True,
            },
        )
    ]


def test_without_a_model_the_line_says_how_to_load_one(bench: Bench, shown: Shown) -> None:
    bench.run("%mtplx scheduler mtp_batch")
    assert shown() == "UsageError: no model is loaded; load one: %mtplx load smollm2-135m\n"


def row(key: str, value: dict[str, Any]) -> str:
    """The row of a status that has nothing else, on one line."""
    text = report.status_text({key: value}, [], chat_turns=0)
    return " ".join(" ".join(text.splitlines()[1:-1]).split())


def test_the_status_says_who_runs_and_who_waits() -> None:
    settings = {"width": 8, "sealed": False, "itl_ms": 200.0, "experimental": False}
    block = {"prefilling": 1, "decoding": 3, "waiting": {"mtp/coupled": 2, "ar": 1}}
    assert row("scheduler", {"mode": "mtp_batch", "settings": settings, "mtp_batch": block}) == (
        "Scheduler: mtp_batch (width 8, refill, itl 200 ms): 1 prefilling, 3 decoding, 3 waiting"
    )
    empty = {"prefilling": 0, "decoding": 0, "waiting": 0}
    assert row("scheduler", {"mode": "serial", "settings": settings, "serial": empty}) == (
        "Scheduler: serial"
    )
    finishing = {"mode": "hyper", "finishing": {"mode": "ar_batch"}, "hyper": {}}
    assert row("scheduler", finishing) == (
        "Scheduler: hyper: once what runs under ar_batch has finished"
    )


def test_the_status_says_what_the_prefix_cache_saves() -> None:
    cache = {
        "entries": 3,
        "bytes": 12_000_000,
        "limit_bytes": 256_000_000,
        "hits": 5,
        "misses": 4,
        "tokens_saved": 1200,
        "last_error": None,
    }
    assert row("prefix_cache", cache) == (
        "Prefix cache: 3 entries, 12 MB of 256 MB; 5 of 9 prompts began as one before, "
        "1200 tokens saved"
    )
    broken = row("prefix_cache", {**cache, "entries": 1, "last_error": "no memory"})
    assert broken.startswith("Prefix cache: 1 entry, 12 MB of 256 MB; ")
    assert broken.endswith("1200 tokens saved: no memory")
    assert row("prefix_cache", {}) == ""
