"""No keyboard interrupt is late, whatever thread the signal is delivered to."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.engine.slices import join, wait_for
from tests.engine.conftest import PROBE
from tests.engine.gates import PATIENCE_S

ENDS_BY_ITSELF_S = 20


def interrupt_on_this_thread() -> Callable[[int, str], None]:
    """A token callback that has SIGINT delivered to the owner thread: no lock wakes for that."""
    seen: list[int] = []

    def on_token(token: int, text: str) -> None:
        seen.append(token)
        if len(seen) == 3:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    return on_token


WAYS: dict[str, Callable[[Engine, dict[str, Any]], Any]] = {
    "generate": lambda engine, options: engine.generate(PROBE, **options),
    "generate with a timeout": lambda e, options: e.generate(PROBE, timeout=PATIENCE_S, **options),
    "stream": lambda engine, options: list(engine.stream(PROBE, **options)),
    "batch": lambda engine, options: engine.generate_batch([PROBE], **options),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_that_another_thread_gets_ends_the_wait(engine: Engine, way: str) -> None:
    # 3000 tokens take seconds: an interrupt that waited for them would find the reason "length".
    options = {"max_tokens": 3000, "ignore_eos": True, "on_token": interrupt_on_this_thread()}
    with pytest.raises(KeyboardInterrupt):
        WAYS[way](engine, options)
    engine.inspect(PROBE)  # waits for the owner
    assert engine.timeline.windows()[-1].finish_reason == "interrupted"


LATE = """
import signal, sys, threading
from mtplx_kernel.engine.slices import join, wait_for

def elsewhere():
    # The main thread sleeps in the lock by now, and the signal is this thread's.
    asleep.wait(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    asleep.wait({seconds})
    never.set()

asleep, never = threading.Event(), threading.Event()
thread = threading.Thread(target=elsewhere, daemon=True)
thread.start()
try:
    {wait}
except KeyboardInterrupt:
    print("in time" if not never.is_set() else "late", flush=True)
    asleep.set()
"""


@pytest.mark.parametrize(
    ("wait", "said"),
    [("wait_for(never)", "in time"), ("join(thread)", "in time"), ("never.wait()", "late")],
)
def test_in_a_process_of_its_own(wait: str, said: str) -> None:
    """The last case is a single wait of a lock: the mistake that slices are for."""
    seconds = 2 if said == "late" else ENDS_BY_ITSELF_S
    code = LATE.format(wait=wait, seconds=seconds)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == f"{said}\n"


def test_a_wait_ends_with_its_event_or_its_time() -> None:
    event = threading.Event()
    assert not wait_for(event, 0)
    began = time.monotonic()
    assert not wait_for(event, 0.12)
    assert time.monotonic() - began >= 0.12
    event.set()
    assert wait_for(event)
    assert wait_for(event, 0)
    assert wait_for(event, float("inf"))
    ended = threading.Thread(target=event.wait)
    ended.start()
    join(ended)
    assert not ended.is_alive()
