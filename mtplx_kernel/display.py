"""Where streamed text goes: printed, rendered as Markdown, or kept silent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from html import escape
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import DisplayHandle

    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.engine.request import Generation

UPDATE_INTERVAL_S = 0.1
FLUSH_INTERVAL_S = 0.1


class Sink(Protocol):
    """Takes the pieces of one answer as they come."""

    text: str
    """What it was given so far."""

    def write(self, piece: str) -> None:
        """Take a piece of text."""

    def close(self) -> None:
        """Show what is still held back; nothing follows."""


class SilentSink:
    """Shows nothing."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, piece: str) -> None:
        """Take a piece of text."""
        self.text += piece

    def close(self) -> None:
        """Nothing is held back."""


class PrintSink:
    """Prints the text as it comes, and ends its last line.

    Parameters
    ----------
    flush_interval_s
        The least time between two flushes, in seconds: in a kernel each one is a message.
    now
        The clock, in seconds.
    """

    def __init__(
        self, flush_interval_s: float = 0.0, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.text = ""
        self._interval = flush_interval_s
        self._now = now
        self._flushed = float("-inf")

    def write(self, piece: str) -> None:
        """Print a piece of text."""
        self.text += piece
        flush = self._now() - self._flushed >= self._interval
        print(piece, end="", flush=flush)
        if flush:
            self._flushed = self._now()

    def close(self) -> None:
        """End the last line."""
        if self.text:
            print(end="" if self.text.endswith("\n") else "\n", flush=True)


class WholeSink:
    """Prints the text once, at the end (`MtplxMagics.stream = False`)."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, piece: str) -> None:
        """Take a piece of text."""
        self.text += piece

    def close(self) -> None:
        """Print all of it."""
        if self.text:
            print(self.text, end="" if self.text.endswith("\n") else "\n", flush=True)


class MarkdownSink:
    """Renders the text in one output that it updates, at most ten times a second.

    Parameters
    ----------
    live
        Whether to show the text before it is complete.
    now
        The clock, in seconds.
    """

    _kind = "text/markdown"

    def __init__(self, live: bool = True, now: Callable[[], float] = time.perf_counter) -> None:
        self.text = ""
        self._live = live
        self._now = now
        self._handle: DisplayHandle | None = None
        self._shown = ""
        self._updated = float("-inf")

    def write(self, piece: str) -> None:
        """Take a piece of text; show it if the last update is long enough ago."""
        self.text += piece
        if self._live and self.text.strip() and self._now() - self._updated >= UPDATE_INTERVAL_S:
            self._show()

    def close(self) -> None:
        """Show the complete text."""
        if self.text.strip() and self._shown != self.text:
            self._show()

    def _show(self) -> None:
        self._publish({self._kind: self._as(self.text), "text/plain": self.text})
        self._shown = self.text
        self._updated = self._now()

    def _as(self, text: str) -> str:
        return text

    def _publish(self, bundle: dict[str, str]) -> None:
        from IPython.display import DisplayHandle

        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)


class TraceSink(MarkdownSink):
    """Shows the plain text as Markdown is shown; at the end the trace takes its place."""

    _kind = "text/html"

    def replace(self, bundle: dict[str, str]) -> None:
        """Show something else in the place of the text."""
        self._publish(bundle)

    def _as(self, text: str) -> str:
        # A page leaves out a line end right at the start of a `pre`.
        first = "\n" if text.startswith("\n") else ""
        return f'<pre style="white-space:pre-wrap">{first}{escape(text)}</pre>'


def has_front_end(shell: InteractiveShell) -> bool:
    """Whether outputs go out as messages (a kernel), so that they can be rich and be updated."""
    return getattr(shell, "kernel", None) is not None


def sink_for(
    shell: InteractiveShell, *, quiet: bool, markdown: bool, stream: bool, trace: bool = False
) -> Sink:
    """The sink for this host and these wishes."""
    if quiet:
        return SilentSink()
    if trace and has_front_end(shell):
        return TraceSink(live=stream)
    if markdown and has_front_end(shell):
        return MarkdownSink(live=stream)
    if not stream:
        return WholeSink()
    return PrintSink(FLUSH_INTERVAL_S if has_front_end(shell) else 0.0)


def show_trace(engine: Engine, generation: Generation, sink: Sink) -> None:
    """Show how the tokens of an answer came: in the place of its text, or printed below it."""
    from mtplx_kernel.widgets.trace_pages import as_html, as_text
    from mtplx_kernel.widgets.tracing import tracer_of

    trace = tracer_of(engine, generation).trace()
    if isinstance(sink, TraceSink):
        plain = f"{generation.text}\n\n{as_text(trace)}"
        sink.replace({"text/html": as_html(trace), "text/plain": plain})
    else:
        print(as_text(trace), flush=True)


class QuietResults:
    """A display hook that can pass over one value: a result asked for with ``--quiet`` or ``;``.

    The value is still what the magic returns, so it can be assigned. It is passed over only where
    the statement that made it shows it: an assigned result is shown by its name like any other.

    Parameters
    ----------
    hook
        The shell's own display hook, which shows everything else.
    """

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook
        self._silent: object = None
        self._making: tuple[FrameType, ...] = ()

    def silence(self, value: object) -> None:
        """Do not show `value` if the statement that runs now is what shows it."""
        self._silent, self._making = value, tuple(_frames(sys._getframe(1)))

    def forget(self) -> None:
        """Show everything again: the cell is over."""
        self._silent, self._making = None, ()

    def __call__(self, result: object = None) -> None:
        """Show `result`, unless it is the one to pass over."""
        # IPython gives each statement a frame of its own, which calls the hook at its end.
        here = sys._getframe(1) in self._making
        silent = self._silent
        self.forget()
        if result is None or result is not silent or not here:
            self.hook(result)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
