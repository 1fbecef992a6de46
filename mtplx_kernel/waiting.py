"""Wait for an answer in the foreground: show it as it comes; an interrupt or a failure ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mtplx_kernel.display import Sink
from mtplx_kernel.engine.request import FinishReason, Generation, Handle
from mtplx_kernel.errors import EngineClosed, RequestFailed, RequestTimeout


def wait(handle: Handle, sink: Sink) -> Generation:
    """Show a request's text as it comes and return its result.

    A keyboard interrupt ends the request: its slot is freed, its text kept, and its result has
    the finish reason ``interrupted``. A second one does not wait for that. Where the text cannot
    be shown, the request is cancelled and has ended when the sink's error is raised.

    Raises
    ------
    RequestFailed
        If the request ended with an error.
    """
    with interrupt_calls(lambda: _cancels(handle)):
        try:
            try:
                for piece in handle.pieces():
                    sink.write(piece)
            finally:
                sink.close()
        except Exception:
            handle.cancel()
            handle.wait()
            raise
        except BaseException:
            handle.cancel(FinishReason.INTERRUPTED)
            raise
        return handle.result()


def ended(handle: Handle) -> Generation | None:
    """What there is of a request that has ended, with whatever end; None where nothing is."""
    try:
        return handle.result(timeout=0)
    except RequestFailed as err:
        return err.generation if isinstance(err.generation, Generation) else None
    except (RequestTimeout, EngineClosed):
        return None


@contextmanager
def interrupt_calls(act: Callable[[], bool]) -> Iterator[None]:
    """Make the interrupt a call, not an exception: one could strike inside a `print`.

    Parameters
    ----------
    act
        Called at each interrupt; False lets it be the exception after all.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if not act():
            before(number, frame)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _cancels(handle: Handle) -> bool:
    if handle.cancel_reason is not None or handle.done:
        return False
    handle.cancel(FinishReason.INTERRUPTED)
    return True
