"""A process that ends, or is interrupted, with engines open: no hang, no crash, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 120

NEVER_CLOSED = """
import sys, mtplx_kernel as mk
engine = mk.load(sys.argv[1])
handle = engine.submit([1, 2, 3], max_tokens=19_000, ignore_eos=True)
stream = engine.stream([1, 2, 3], max_tokens=19_000, ignore_eos=True)
next(handle.pieces())
print("bye")
"""

IN_A_CYCLE = """
import sys, mtplx_kernel as mk
first = mk.load(sys.argv[1])
second = mk.load(sys.argv[1])
first.me, second.other = first, first
def on_token(token, text):
    if not first.closed:
        first.configure(mode="ar")
first.submit([1, 2, 3], max_tokens=19_000, ignore_eos=True, on_token=on_token)
del first, second
print("bye")
"""

WAITS = """
import sys, mtplx_kernel as mk
from mtplx_kernel.engine import owner
real = owner.load
def load(*model, **told):
    print("loading", flush=True)
    return real(*model, **told)
owner.load = load
engine = mk.load(sys.argv[1])
print("loaded", flush=True)
for way in ("generate", "stream", "generate_batch"):
    prompt = [1, 2, 3] if way != "generate_batch" else [[1, 2, 3]] * 3
    started = []
    def on_token(token, text):
        if not started:
            started.append(token)
            print("running", flush=True)
    try:
        answer = getattr(engine, way)(prompt, max_tokens=19_000, ignore_eos=True, on_token=on_token)
        for _ in answer: pass
    except KeyboardInterrupt:
        print(way, engine.generate([1, 2, 3], max_tokens=3).token_ids, flush=True)
print([w.finish_reason for w in engine.timeline.windows()], flush=True)
"""


@pytest.mark.parametrize("script", [NEVER_CLOSED, IN_A_CYCLE], ids=["running", "in a cycle"])
def test_an_engine_that_is_never_closed(tiny_folder: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny_folder)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")


def run_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"


def started(script: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_interrupts_while_it_works(tiny_folder: Path) -> None:
    with started(WAITS, tiny_folder) as process:
        run_until(process, "loading")
        run_until(process, "loaded")
        answers = []
        for way in ("generate", "stream", "generate_batch"):
            run_until(process, "running")
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            name, _, ids = process.stdout.readline().partition(" ")
            assert name == way
            answers.append(ids)
        # Not communicate(): what the pipe's reader has already taken in would be lost.
        assert process.stdout is not None
        assert process.stderr is not None
        rest, errors = process.stdout.read(), process.stderr.read()
    assert len(set(answers)) == 1
    ends = ["interrupted", "length"] * 2 + ["interrupted"] * 3 + ["length"]
    assert (process.returncode, rest, errors) == (0, f"{ends}\n", "")


def test_an_interrupt_while_it_loads(tiny_folder: Path) -> None:
    with started(WAITS, tiny_folder) as process:
        run_until(process, "loading")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode in {1, -signal.SIGINT}  # by Python version; a crash has another
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1
