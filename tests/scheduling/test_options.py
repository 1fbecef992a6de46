"""Options of the scheduler modes: what is wrong is refused in a line that says what is allowed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.scheduling.options import OPT_IN_VARIABLE, SchedulerMode, SchedulerOptions

COHORT = SchedulerMode.MTP_COHORT_EXPERIMENTAL


def refusal(mode: str, environment: dict[str, str] | None = None, **given: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        SchedulerOptions.of(mode, given, environment or {})
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("mode", [mode for mode in SchedulerMode if mode != COHORT])
def test_nothing_given_is_the_defaults(mode: str) -> None:
    assert SchedulerOptions.of(mode, {}, {}) == SchedulerOptions()


def test_what_is_given_is_taken() -> None:
    given = {
        "width": 16,
        "wait_ms": 0,
        "max_wait_ms": 7.5,
        "prefill_cap": 1,
        "sealed": True,
        "itl_ms": 50,
    }
    options = SchedulerOptions.of("mtp_batch", given, {})
    assert options == SchedulerOptions(**given)  # type: ignore[arg-type]
    assert (options.width, options.wait_ms, options.sealed) == (16, 0, True)


@pytest.mark.parametrize("width", [0, -1, 65, 2.0, True, "8", None])
def test_a_width_is_1_to_64(width: Any) -> None:
    line = f"width must be a whole number, 1 to 64, not {width!r}"
    assert refusal("ar_batch", width=width) == line
    assert [SchedulerOptions(width=n).width for n in (1, 64)] == [1, 64]


@pytest.mark.parametrize("cap", [0, -2, 1.5, True, "2", None])
def test_a_prefill_cap_is_at_least_1(cap: Any) -> None:
    line = f"prefill_cap must be a whole number, 1 or more, not {cap!r}"
    assert refusal("ar_batch", prefill_cap=cap) == line


@pytest.mark.parametrize("name", ["wait_ms", "max_wait_ms"])
@pytest.mark.parametrize("value", [-1, -0.001, 3_600_001, math.nan, math.inf, True, "5", None])
def test_waits_are_not_negative(name: str, value: Any) -> None:
    line = f"{name} must be a number of milliseconds, 0 to 3600000, not {value!r}"
    assert refusal("mtp_batch", **{name: value}) == line


def test_the_longest_wait_is_no_shorter_than_the_first() -> None:
    line = "max_wait_ms must be at least wait_ms (20), not 10"
    assert refusal("mtp_batch", wait_ms=20, max_wait_ms=10) == line
    assert refusal("mtp_batch", wait_ms=5000) == (
        "max_wait_ms must be at least wait_ms (5000), not 2000.0"
    )
    assert SchedulerOptions(wait_ms=10, max_wait_ms=10).max_wait_ms == 10


@pytest.mark.parametrize("name", ["itl_ms", "ttft_ms"])
@pytest.mark.parametrize("value", [0, -5, 3_600_001, math.nan, math.inf, True, "200", None])
def test_targets_are_above_0(name: str, value: Any) -> None:
    allowed = "a number of milliseconds, above 0, at most 3600000"
    line = f"{name} must be {allowed}, not {value!r}"
    assert refusal("cooperative", **{name: value}) == line


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_switches_are_true_or_false(value: Any) -> None:
    assert refusal("mtp_batch", sealed=value) == f"sealed must be True or False, not {value!r}"
    line = f"experimental must be True or False, not {value!r}"
    assert refusal(COHORT, experimental=value) == line


@pytest.mark.parametrize(
    ("mode", "name", "allowed"),
    [
        ("serial", "width", "no options"),
        ("serial", "wait_ms", "no options"),
        ("cooperative", "wait_ms", "width, itl_ms, ttft_ms"),
        ("cooperative", "prefill_cap", "width, itl_ms, ttft_ms"),
        ("ar_batch", "sealed", "width, prefill_cap, itl_ms"),
        (
            "mtp_batch",
            "experimental",
            "width, wait_ms, max_wait_ms, prefill_cap, sealed, itl_ms",
        ),
    ],
)
def test_a_mode_takes_only_what_means_something_to_it(mode: str, name: str, allowed: str) -> None:
    line = f"scheduler {mode!r} does not take {name}; allowed: {allowed}"
    assert refusal(mode, **{name: 1}) == line


def test_unknown_options_are_refused() -> None:
    line = "'widht' is no scheduler option; allowed: width, prefill_cap, itl_ms"
    assert refusal("ar_batch", widht=3) == line
    assert refusal("serial", widht=3) == "'widht' is no scheduler option; allowed: none"


@pytest.mark.parametrize(
    ("name", "value"),
    [("width", 2), ("wait_ms", 5), ("active", 4), ("sealed", False), ("experimental", True)],
)
def test_hyper_is_not_tunable(name: str, value: Any) -> None:
    assert refusal("hyper", **{name: value}) == (
        "scheduler 'hyper' is not tunable: it runs one request at a time, alone and at once, "
        f"so {name}={value!r} is refused; allowed: no options"
    )


def test_hyper_may_be_told_what_it_is() -> None:
    assert SchedulerOptions.of("hyper", {"width": 1}, {}).width == 1


def test_unknown_modes_are_refused() -> None:
    assert refusal("fifo").startswith("scheduler 'fifo' is no scheduler; allowed: serial, ")


def test_cohorts_must_be_opted_in() -> None:
    how = (
        "scheduler 'mtp_cohort_experimental' is experimental and off; to opt in, give "
        "experimental=True or --experimental-cohorts, or set MTPLX_KERNEL_EXPERIMENTAL_COHORTS=1"
    )
    assert refusal(COHORT) == how
    assert refusal(COHORT, {OPT_IN_VARIABLE: "0"}, width=4) == how
    assert refusal(COHORT, {OPT_IN_VARIABLE: "1"}, experimental=False) == how
    by_option = SchedulerOptions.of(COHORT, {"experimental": True, "width": 4}, {})
    by_variable = SchedulerOptions.of(COHORT, {"width": 4}, {OPT_IN_VARIABLE: "1"})
    assert by_option == by_variable == SchedulerOptions(width=4, experimental=True)


def test_the_variable_is_looked_up_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPT_IN_VARIABLE, "1")
    assert SchedulerOptions.of(COHORT, {}).experimental
    monkeypatch.delenv(OPT_IN_VARIABLE)
    with pytest.raises(InvalidRequest):
        SchedulerOptions.of(COHORT, {})
    assert not SchedulerOptions.of("mtp_batch", {}).experimental
