"""What the engine's thread says to the event loop: all of it, in order, with few wakings."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mtplx_kernel.server.post import Post


class Counting(asyncio.SelectorEventLoop):
    """A loop that counts how often another thread wakes it."""

    woken = 0

    def call_soon_threadsafe(self, callback: Any, *args: Any, **named: Any) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(callback, *args, **named)


def test_what_is_said_within_a_moment_wakes_the_loop_once() -> None:
    loop = Counting()
    post, come = Post(loop), []
    for number in range(100):
        post.send(come.append, number)
    assert (loop.woken, come) == (1, [])
    loop.run_until_complete(asyncio.sleep(0.01))
    assert come == list(range(100))
    post.send(come.append, "later")
    assert loop.woken == 2
    loop.run_until_complete(asyncio.sleep(0.01))
    assert come[-1] == "later"
    loop.close()


def test_nothing_is_lost_or_overtaken_where_threads_and_the_loop_meet() -> None:
    async def main() -> None:
        post = Post(asyncio.get_running_loop())
        come: dict[int, list[int]] = {thread: [] for thread in range(3)}

        def speak(thread: int) -> None:
            for number in range(20_000):
                post.send(come[thread].append, number)

        threads = [threading.Thread(target=speak, args=[thread]) for thread in come]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        async with asyncio.timeout(20):
            while any(len(numbers) < 20_000 for numbers in come.values()):
                await asyncio.sleep(0.001)
        assert all(numbers == list(range(20_000)) for numbers in come.values())

    asyncio.run(main())


def test_a_loop_that_has_ended_refuses_each_time() -> None:
    loop = asyncio.new_event_loop()
    post = Post(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            post.send(print, "a")
