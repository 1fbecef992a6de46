"""Where the progress of several requests goes: printed, one updated output, or kept silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mtplx_kernel.batch import BatchResult, ending
from mtplx_kernel.display import UPDATE_INTERVAL_S, has_front_end
from mtplx_kernel.together import Part

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import DisplayHandle

MOST_LINES = 24
"""With more parts than this, only those that run have a line."""


class Board(Protocol):
    """Shows the parts while they run, and then the answers."""

    def update(self, parts: Sequence[Part]) -> None:
        """Something may have changed."""

    def close(self, result: BatchResult) -> None:
        """Show the answers; nothing follows."""


class SilentBoard:
    """Shows nothing."""

    def update(self, parts: Sequence[Part]) -> None:
        """Show nothing."""

    def close(self, result: BatchResult) -> None:
        """Show nothing."""


class PrintedBoard:
    """Prints a line when a part ends, and then the answers in order.

    Parameters
    ----------
    live
        Whether to print those lines.
    """

    def __init__(self, live: bool = True) -> None:
        self._live = live
        self._told: set[int] = set()

    def update(self, parts: Sequence[Part]) -> None:
        """Print what has ended since the last call."""
        if not self._live:
            return
        for n, part in enumerate(parts, 1):
            if part.outcome is not None and n not in self._told:
                self._told.add(n)
                done = f"{len(self._told)} of {len(parts)}"
                print(f"{done}: [{n}] {part.title} ({ending(part.outcome)})", flush=True)

    def close(self, result: BatchResult) -> None:
        """Print the answers."""
        before = "\n" if self._told else ""
        print(f"{before}{result.page}", flush=True)


class LiveBoard:
    """One output, updated at most ten times a second, that the answers replace at the end.

    Parameters
    ----------
    markdown
        Whether the answers are rendered as Markdown.
    live
        Whether to show anything before the end.
    now
        The clock, in seconds.
    """

    def __init__(
        self,
        markdown: bool,
        live: bool = True,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._markdown = markdown
        self._live = live
        self._now = now
        self._handle: DisplayHandle | None = None
        self._shown: dict[str, str] = {}
        self._begun = now()
        self._updated = float("-inf")

    def update(self, parts: Sequence[Part]) -> None:
        """Show how far the parts are, if the last update is long enough ago."""
        if self._live and self._now() - self._updated >= UPDATE_INTERVAL_S:
            self._show({"text/plain": progress(parts, self._now() - self._begun)})

    def close(self, result: BatchResult) -> None:
        """Show the answers in the place of the progress."""
        markdown = {"text/markdown": result.markdown} if self._markdown else {}
        self._show({"text/plain": result.page, **markdown})

    def _show(self, bundle: dict[str, str]) -> None:
        from IPython.display import DisplayHandle

        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display(bundle, raw=True)
        elif bundle != self._shown:
            self._handle.update(bundle, raw=True)
        self._shown = bundle
        self._updated = self._now()


def progress(parts: Sequence[Part], seconds: float) -> str:
    """How far the parts are, as text: a line for all, and one for each."""
    done = sum(part.outcome is not None for part in parts)
    tokens = sum(p.handle.window.completion_tokens for p in parts if p.handle is not None)
    lines = [f"{done} of {len(parts)} done, {tokens} tokens, {seconds:.0f} s"]
    for n, part in enumerate(parts, 1):
        if len(parts) <= MOST_LINES or _runs(part):
            lines.append(f"[{n}] {part.title} ({_state(part)})")
    return "\n".join(lines)


def _runs(part: Part) -> bool:
    handle = part.handle
    return part.outcome is None and handle is not None and handle.window.admitted is not None


def _state(part: Part) -> str:
    if part.outcome is not None:
        return ending(part.outcome)
    if part.handle is None or not _runs(part):
        return "waits"
    tokens = part.handle.window.completion_tokens
    return f"{tokens} tokens so far" if tokens else "reads the prompt"


def board_for(shell: InteractiveShell, *, quiet: bool, markdown: bool, stream: bool) -> Board:
    """The board for this host and these wishes."""
    if quiet:
        return SilentBoard()
    if has_front_end(shell):
        return LiveBoard(markdown, live=stream)
    return PrintedBoard(live=stream)
