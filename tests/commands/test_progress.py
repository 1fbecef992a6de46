"""Long commands draw how far they are on a terminal, leave nothing of it, and are silent else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pexpect
import pytest

LIMIT_S = 300
COLUMNS = 80
PROGRAM = """
import json, sys
from benchmarks import decode
from mtplx_kernel import cli
from mtplx_kernel.training import command
mains = {"distill": command.main, "decode": decode.main}
for name, *words in json.loads(sys.argv[1]):
    main = mains.get(name, lambda words: cli.main([name, *words]))
    assert main(words) == 0, name
"""
ENDLESS = """
import time
from mtplx_kernel.models.progress import ProgressBar
try:
    with ProgressBar(total=1000, desc="working", unit="run") as bar:
        while True:
            bar.update()
            time.sleep(0.02)
except KeyboardInterrupt:
    print("stopped")
"""
CHECK = ["--prompts", "1", "--max-tokens", "18"]
DISTILL = [
    *("--tokens", "1600", "--length", "160", "--conversation", "160", "--rows", "4"),
    *("--depth", "1", "--draft-vocab", "50", "--steps", "2", "--judged", "1"),
]


def commands(model: Path, into: Path) -> list[list[str]]:
    """Everything that takes long, as short as can be."""
    return [
        ["convert", os.fspath(model), os.fspath(into / "converted")],
        ["distill", os.fspath(model), "--out", os.fspath(into / "head"), *DISTILL],
        ["verify", os.fspath(model), *CHECK, "--draws", "1"],
        ["tune", os.fspath(model), *CHECK, "--max-depth", "1", "--no-keep"],
        ["bench", os.fspath(model), *CHECK, "--clients", "1", "--modes", "hyper"],
        ["decode", "--model", os.fspath(model), *CHECK, "--repeats", "1", "--skip-stock"],
    ]


def child(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """A Python that runs a program, and its environment: no kernel started it."""
    environment = {k: v for k, v in os.environ.items() if k != "JPY_PARENT_PID"}
    return [sys.executable, "-c", program, *arguments], environment


def in_terminal(program: str, *arguments: str, columns: int = COLUMNS) -> pexpect.spawn:
    """The same in a terminal of its own."""
    command, environment = child(program, *arguments)
    return pexpect.spawn(
        command[0],
        command[1:],
        env=environment,
        encoding="utf-8",
        timeout=LIMIT_S,
        dimensions=(24, columns),
    )


def screen(written: str, columns: int = COLUMNS) -> list[str]:
    """What a terminal shows after all that was written to it, line by line."""
    lines, column = [[" "] * columns], 0
    for letter in written:
        if letter == "\r":
            column = 0
        elif letter == "\n":
            lines.append([" "] * columns)
        else:
            if column == columns:
                lines.append([" "] * columns)
                column = 0
            lines[-1][column] = letter
            column += 1
    return ["".join(line).rstrip() for line in lines]


def bars(text: str) -> set[str]:
    """What bars are of."""
    return set(re.findall(r"([^\r\n]+?): +\d+%\|", text))


def test_every_long_command_draws_on_a_terminal(folder: Path, tmp_path: Path) -> None:
    running = in_terminal(PROGRAM, json.dumps(commands(folder, tmp_path)))
    running.expect(pexpect.EOF)
    running.close()
    assert running.exitstatus == 0, running.before
    assert bars(running.before) >= {
        "converting endless",
        "loading endless",
        *("writing", "training", "judging at temperature 0.0", "judging at temperature 0.8"),
        *("verifying", "tuning", "comparing", "decode"),
    }
    assert not bars("\n".join(screen(running.before)))


def test_none_does_where_nobody_watches(folder: Path, tmp_path: Path) -> None:
    command, environment = child(PROGRAM, json.dumps(commands(folder, tmp_path)))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert not bars(done.stdout + done.stderr)
    assert "\r" not in done.stdout + done.stderr
    # A distillation, which may run for hours, leaves a log.
    assert {line.split()[0] for line in done.stderr.splitlines()} == {"wrote", "train", "T"}


@pytest.mark.parametrize("columns", [80, 30])
def test_an_interrupt_leaves_the_terminal_clean(columns: int) -> None:
    running = in_terminal(ENDLESS, columns=columns)
    running.expect(r"[1-9]%")
    seen = running.before + running.after
    running.sendintr()
    running.expect(pexpect.EOF)
    seen += running.before
    assert "^C" in seen  # as the terminal echoes it
    assert [line for line in screen(seen, columns) if line] == ["stopped"]


def screens(words: Sequence[str]) -> list[str]:
    """For the next test: what is shown after each piece."""
    return [screen("".join(words[: n + 1]))[-1] for n in range(len(words))]


def test_the_screen_is_as_a_terminals() -> None:
    assert screens(["abc", "\rx", "\r   \r", "^C", "\r\nend"]) == ["abc", "xbc", "", "^C", "end"]
    assert screen("a" * 81) == ["a" * 80, "a"]
