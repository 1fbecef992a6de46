"""What the controls show and what they may change, as plain data and one protocol."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

Setting = bool | int | float
NO_MODEL = "no model is loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A request that waits or runs; `doing` is waiting, prefill, decoding or ending."""

    request_id: str
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """All that the controls show, at one moment.

    Attributes
    ----------
    model, mode, scheduler
        None while no model is loaded.
    state
        The engine's: running, closed or dead.
    mode_reason
        Why mode mtp is not to be had; None where it is.
    settings
        Those that the scheduler in force takes, by name.
    depth
        Drafts a cycle of requests that name none; None leaves it to the engine.
    sampling
        The defaults of prompts, by name.
    endpoint
        Where the model is served; None where it is not.
    requests
        The open ones, oldest first.
    """

    model: str | None = None
    state: str = "running"
    mode: str | None = None
    mode_reason: str | None = None
    scheduler: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    depth: int | None = None
    sampling: Mapping[str, Setting] = field(default_factory=dict)
    endpoint: str | None = None
    requests: tuple[OpenRequest, ...] = ()

    @property
    def waiting(self) -> int:
        """How many requests have not begun."""
        return sum(1 for request in self.requests if request.doing == "waiting")

    def rows(self) -> list[tuple[str, str]]:
        """Labels and texts, for where there are no controls."""
        rows = [("Model", self.model or NO_MODEL)]
        if self.model is not None:
            reason = f": {self.mode_reason}" if self.mode_reason else ""
            rows += [
                ("Mode", f"{self.mode}{reason}"),
                ("Scheduler", listed(self.scheduler or "", self.settings)),
                ("Depth", "the engine's choice" if self.depth is None else str(self.depth)),
            ]
        rows += [
            ("Sampler", listed("", self.sampling)),
            ("Endpoint", self.endpoint or "off"),
            ("Queue", f"{len(self.requests) - self.waiting} running, {self.waiting} waiting"),
        ]
        return rows


class Desk(Protocol):
    """What the controls act on; every act may raise an error of one line, and then does nothing."""

    modes: tuple[str, ...]
    schedulers: tuple[str, ...]
    deepest: int
    experimental: str
    """The scheduler that has to be opted in to."""

    def models(self) -> tuple[str, ...]:
        """Names that can be loaded."""

    def read(self) -> InForce:
        """What is in force now, whoever put it in force."""

    def load(self, name: str) -> None:
        """Load a model in place of the one before."""

    def set_mode(self, mode: str) -> None:
        """Change the default generation mode."""

    def set_scheduler(self, name: str, *, opt_in: bool) -> None:
        """Put a scheduler in force, with its usual settings."""

    def set_setting(self, name: str, value: Setting) -> None:
        """Change one setting of the scheduler in force."""

    def set_depth(self, depth: int | None) -> None:
        """Change the default depth."""

    def set_sampling(self, name: str, value: Setting) -> None:
        """Change one default of prompts."""

    def serve(self, on: bool) -> None:
        """Serve the model, or end that."""

    def cancel(self, request_id: str | None) -> None:
        """Cancel an open request, or all of them (None); one that has ended is left alone."""


def listed(name: str, settings: Mapping[str, Setting]) -> str:
    """A name with settings in brackets, or the settings alone."""
    said = ", ".join(f"{key} {_plain(value)}" for key, value in settings.items())
    return f"{name} ({said})" if name and said else name or said


def bundle(in_force: InForce) -> dict[str, str]:
    """What stands in a notebook where the controls were: a table, and the same as text."""
    rows = in_force.rows()
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(label)}</th>'
        f'<td style="text-align:left">{html.escape(text)}</td></tr>'
        for label, text in rows
    )
    width = max(len(label) for label, _ in rows) + 2
    return {
        "text/html": f"<table>{cells}</table>",
        "text/plain": "\n".join(f"{label + ':':<{width}}{text}" for label, text in rows),
    }


def _plain(value: Setting) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:g}"
