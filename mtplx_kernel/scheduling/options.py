"""What a scheduler mode can be told, checked before anything changes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from mtplx_kernel.errors import InvalidRequest

WIDEST = 64
"""Most rows that can be asked for."""

LONGEST_MS = 3_600_000
"""The longest wait or gap that can be asked for: an hour."""

OPT_IN_VARIABLE = "MTPLX_KERNEL_EXPERIMENTAL_COHORTS"
"""Opts in to `mtp_cohort_experimental` where it is 1."""


class SchedulerMode(StrEnum):
    """How the engine shares the model between requests."""

    SERIAL = "serial"
    COOPERATIVE = "cooperative"
    AR_BATCH = "ar_batch"
    MTP_BATCH = "mtp_batch"
    MTP_COHORT_EXPERIMENTAL = "mtp_cohort_experimental"
    HYPER = "hyper"


_COHORTS = ("width", "wait_ms", "max_wait_ms", "prefill_cap", "sealed", "itl_ms")

TAKEN: Mapping[SchedulerMode, tuple[str, ...]] = {
    SchedulerMode.SERIAL: (),
    SchedulerMode.COOPERATIVE: ("width", "itl_ms", "ttft_ms"),
    SchedulerMode.AR_BATCH: ("width", "prefill_cap", "itl_ms"),
    SchedulerMode.MTP_BATCH: _COHORTS,
    SchedulerMode.MTP_COHORT_EXPERIMENTAL: (*_COHORTS, "experimental"),
    SchedulerMode.HYPER: (),
}
"""The options that mean something to each mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Settings of the scheduler modes; each mode takes those that mean something to it.

    Attributes
    ----------
    width
        Most rows of a forward (cooperative: most requests under way); 1 to 64.
    wait_ms
        How long an unfilled cohort waits for more jobs.
    max_wait_ms
        How long jobs of another key may be kept waiting by refills; at least `wait_ms`.
    prefill_cap
        Most prompts that prefill at a time.
    sealed
        Whether nobody joins a cohort once it runs.
    itl_ms
        The target for the gap between two tokens of a running request.
    ttft_ms
        The target for the time from a request's arrival to its first token.
    experimental
        Opts in to `mtp_cohort_experimental`.

    Raises
    ------
    InvalidRequest
        If a value is none of those.
    """

    width: int = 8
    wait_ms: float = 5.0
    max_wait_ms: float = 2000.0
    prefill_cap: int = 2
    sealed: bool = False
    itl_ms: float = 200.0
    ttft_ms: float = 2000.0
    experimental: bool = False

    def __post_init__(self) -> None:
        if not _whole(self.width) or not 1 <= self.width <= WIDEST:
            _refuse("width", f"a whole number, 1 to {WIDEST}", self.width)
        if not _whole(self.prefill_cap) or self.prefill_cap < 1:
            _refuse("prefill_cap", "a whole number, 1 or more", self.prefill_cap)
        for name in ("wait_ms", "max_wait_ms"):
            value = getattr(self, name)
            if not _number(value) or not 0 <= value <= LONGEST_MS:
                _refuse(name, f"a number of milliseconds, 0 to {LONGEST_MS}", value)
        if self.max_wait_ms < self.wait_ms:
            _refuse("max_wait_ms", f"at least wait_ms ({self.wait_ms:g})", self.max_wait_ms)
        for name in ("itl_ms", "ttft_ms"):
            value = getattr(self, name)
            if not _number(value) or not 0 < value <= LONGEST_MS:
                _refuse(name, f"a number of milliseconds, above 0, at most {LONGEST_MS}", value)
        for name in ("sealed", "experimental"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, "True or False", getattr(self, name))

    @classmethod
    def of(
        cls, mode: str, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ
    ) -> Self:
        """The options of a mode from those that the user named; the rest have their defaults.

        Parameters
        ----------
        mode
            One of `SchedulerMode`.
        given
            Options by name.
        environment
            Where `OPT_IN_VARIABLE` is looked up.

        Raises
        ------
        InvalidRequest
            If the mode or an option is unknown, if the mode does not take the option, if a value
            is wrong, or if the mode is experimental and nobody opted in.
        """
        mode = check_mode(mode)
        known = [field.name for field in fields(cls)]
        for name, value in given.items():
            if mode == SchedulerMode.HYPER and not (name == "width" and value == 1):
                raise InvalidRequest(
                    f"scheduler 'hyper' is not tunable: it runs one request at a time, alone and "
                    f"at once, so {name}={value!r} is refused; allowed: no options"
                )
            if name not in known:
                raise InvalidRequest(
                    f"{name!r} is no scheduler option; allowed: {', '.join(TAKEN[mode]) or 'none'}"
                )
            if name not in TAKEN[mode] and mode != SchedulerMode.HYPER:
                allowed = ", ".join(TAKEN[mode]) or "no options"
                raise InvalidRequest(
                    f"scheduler {str(mode)!r} does not take {name}; allowed: {allowed}"
                )
        options = cls(**given)
        if mode != SchedulerMode.MTP_COHORT_EXPERIMENTAL or options.experimental:
            return options
        if "experimental" not in given and environment.get(OPT_IN_VARIABLE) == "1":
            return cls(**given, experimental=True)
        raise InvalidRequest(
            f"scheduler {str(mode)!r} is experimental and off; to opt in, give experimental=True "
            f"or --experimental-cohorts, or set {OPT_IN_VARIABLE}=1"
        )


def check_mode(name: str) -> SchedulerMode:
    """The scheduler mode of this name.

    Raises
    ------
    InvalidRequest
        If there is none.
    """
    if isinstance(name, str) and name in list(SchedulerMode):
        return SchedulerMode(name)
    allowed = ", ".join(SchedulerMode)
    shown = repr(str(name)) if isinstance(name, str) else repr(name)
    raise InvalidRequest(f"scheduler {shown} is no scheduler; allowed: {allowed}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(name: str, allowed: str, value: object) -> None:
    raise InvalidRequest(f"{name} must be {allowed}, not {value!r}")
