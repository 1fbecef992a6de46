"""An event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from mtplx_kernel.engine.slices import SLICE_S, join, wait_for
from mtplx_kernel.errors import EndpointLost, InvalidRequest

T = TypeVar("T")


class _Call(Generic[T]):
    """A coroutine, and its end."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.done = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Begin with it, on the loop."""
        if not self.done.is_set():
            self._task = asyncio.get_running_loop().create_task(self._work)
            self._task.add_done_callback(lambda _: self.done.set())

    def cancel(self) -> None:
        """Cancel it, on the loop; it need not have begun, and then does not."""
        if self._task is not None:
            self._task.cancel()
        else:
            self.drop()

    def drop(self) -> None:
        """Never begin with it."""
        self._work.close()
        self.done.set()

    def result(self) -> T:
        """What came of it."""
        assert self._task is not None
        if self._task.cancelled():
            raise EndpointLost("the client was closed before the answer", connected=True)
        return self._task.result()


class Background:
    """Runs coroutines while their callers wait; the thread starts with the first of them.

    Safe to use from any thread.

    Parameters
    ----------
    name
        The thread's.
    last
        What runs at the end, when everything else was cancelled.
    """

    def __init__(self, name: str, last: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._last = last
        self._lock = threading.Lock()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def stopped(self) -> bool:
        """Whether it takes no more work."""
        return self._stopped

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. An interrupt cancels it, and is raised when it has ended.

        Raises
        ------
        InvalidRequest
            If `stop` was called before, or this process was forked off since.
        EndpointLost
            If it is called meanwhile.
        """
        call = _Call(work)
        try:
            self._hand_over(call)
            wait_for(call.done)
        except BaseException:  # an interrupt may strike anywhere in there
            self._take_back(call)
            raise
        return call.result()

    def _hand_over(self, call: _Call[T]) -> None:
        # Under the lock, so that nothing is begun behind the end, where nobody would answer.
        with self._lock:
            if self._stopped:
                raise InvalidRequest("the client is closed: make another")
            loop = self._loop or self._start()
            if self._thread is None or not self._thread.is_alive():
                raise InvalidRequest("the client is another process's: make another")
            call.loop = loop
            loop.call_soon_threadsafe(call.begin)

    def _take_back(self, call: _Call[T]) -> None:
        """Cancel a call that may have been handed over, and wait for its end."""
        if call.loop is None:
            call.drop()
            return
        with contextlib.suppress(RuntimeError):  # a loop that is closed runs nothing
            call.loop.call_soon_threadsafe(call.cancel)
        while not call.done.wait(SLICE_S) and not call.loop.is_closed():
            pass

    def stop(self) -> None:
        """Cancel what runs, run what comes last and end the thread."""
        with self._lock:
            self._stopped = True
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        # The garbage collector may call this anywhere, on that thread too.
        if self._thread is not threading.current_thread():
            join(self._thread)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_live, args=(loop, self._last), name=self._name, daemon=True
        )
        self._thread.start()
        self._loop = loop
        return loop


def _live(loop: asyncio.AbstractEventLoop, last: Callable[[], Awaitable[None]]) -> None:
    """Run the loop until it is stopped, and leave nothing behind."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
        runner.run(_end(last))


async def _end(last: Callable[[], Awaitable[None]]) -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await last()
