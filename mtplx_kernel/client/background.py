"""An event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from mtplx_kernel.engine.slices import join, wait_for
from mtplx_kernel.errors import EndpointLost, InvalidRequest

T = TypeVar("T")


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
            If `stop` was called before.
        EndpointLost
            If it is called meanwhile.
        """
        tasks: list[asyncio.Task[T]] = []
        done = threading.Event()

        def begin() -> None:
            tasks.append(asyncio.get_running_loop().create_task(work))
            tasks[0].add_done_callback(lambda _: done.set())

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        # Under the lock, so that nothing is begun behind the end, where nobody would answer.
        with self._lock:
            if self._stopped:
                work.close()
                raise InvalidRequest("the client is closed: make another")
            loop = self._loop or self._start()
            loop.call_soon_threadsafe(begin)
        try:
            wait_for(done)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # a loop that is closed runs nothing
                loop.call_soon_threadsafe(cancel)
            wait_for(done)
            raise
        if tasks[0].cancelled():
            raise EndpointLost("the client was closed before the answer", connected=True)
        return tasks[0].result()

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_live, args=(self._loop, self._last), name=self._name, daemon=True
        )
        self._thread.start()
        return self._loop


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
