"""Plain IPython in a terminal: print only, Ctrl-C, questions, a clean exit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

LIMIT_S = 120


class Terminal:
    """An IPython in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        arguments = "-m IPython --no-banner --no-confirm-exit --simple-prompt --colors=nocolor"
        self.child = pexpect.spawn(
            sys.executable,
            arguments.split(),
            env={**os.environ, "TERM": "dumb", "IPYTHONDIR": os.fspath(folder)},
            encoding="utf-8",
            codec_errors="replace",
            timeout=LIMIT_S,
            dimensions=(40, 80),
            echo=False,
        )
        self.count = 1
        self.prompt()

    def prompt(self) -> str:
        """Wait for the next prompt; what was shown before it, without continuation marks."""
        self.child.expect_exact(f"In [{self.count}]: ")
        shown: str = self.child.before
        shown = shown.replace("\r\n", "\n").replace("   ...: ", "")
        # What a slow machine has drawn and wiped out meanwhile.
        return re.sub(r"[^\n\r]*\r", "", shown).strip()

    def run(self, *lines: str) -> str:
        self.child.sendline("\n".join(lines))
        self.count += 1
        return self.prompt()


@pytest.fixture(scope="module")
def terminal(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path_factory.mktemp("ipython"))
    assert terminal.run("%load_ext mtplx_kernel") == ""
    assert "\nLoaded tiny llama (llama, " in terminal.run(f"%mtplx load '{tiny_folder}'")
    yield terminal
    terminal.child.close(force=True)


def test_a_question_is_answered_and_its_stats_follow(terminal: Terminal) -> None:
    shown = terminal.run("%mtplx ask --max-tokens 3 What is it?")
    assert shown.splitlines()[-1].startswith("Out[3]: <length: 3 tokens, ")
    assert "not found" not in shown


def letters(text: str) -> str:
    """The letters and digits: of the random rest, a terminal shows little as it is."""
    return "".join(c for c in text if c.isascii() and c.isalnum())


def test_a_cell_is_printed_also_with_markdown(terminal: Terminal) -> None:
    shown = terminal.run("%%mtplx --markdown --raw --max-tokens 60", "Hi;", "", "")
    written = terminal.run("''.join(c for c in _mtplx.text if c.isascii() and c.isalnum())")
    assert letters(shown) == letters(written.partition("]: ")[2]) != ""
    assert terminal.run("%%mtplx --quiet --max-tokens 60", "Hi", "", "") == ""


def test_the_interrupt_key_keeps_the_text(terminal: Terminal) -> None:
    terminal.child.sendline("%%mtplx --raw --max-tokens 90000\nOnce\n\n")
    # The tiny tokenizer's tokens are bytes: some text has come when there are several.
    terminal.child.expect(r"[^\s.:]{3}")
    terminal.child.sendintr()
    terminal.child.expect(r"Interrupted after (\d+) tokens?; the partial answer is in _mtplx\.\r\n")
    tokens = terminal.child.match[1]
    terminal.count += 1
    assert terminal.prompt() == ""
    shown = terminal.run("len(_mtplx.token_ids), str(_mtplx.finish_reason)")
    assert shown.endswith(f"({tokens}, 'interrupted')")
    assert "<length: 3 tokens" in terminal.run("%mtplx ask --max-tokens 3 again")


def test_a_batch_prints_lines_and_then_the_answers(terminal: Terminal) -> None:
    lines = ("%%mtplx --batch --max-tokens 4", "One", "---", "Two", "", "")
    shown = terminal.run(*lines)
    first, second = (line for line in shown.splitlines() if re.match(r"\d of 2: ", line))
    assert first.startswith("1 of 2: [1] One (4 tokens, ")
    assert second.startswith("2 of 2: [2] Two (4 tokens, ")
    assert "\n[1] One (4 tokens, " in shown.replace("\r", "")
    assert shown.splitlines()[-1].startswith(f"Out[{terminal.count - 1}]: <2 requests: 2 complete")


def test_a_mistake_is_one_line(terminal: Terminal) -> None:
    shown = terminal.run("%mtplx mode fast")
    assert shown == "UsageError: --mode must be one of mtp, ar, not 'fast'"


def test_exit_closes_the_engine(terminal: Terminal) -> None:
    terminal.child.sendline("exit")
    terminal.child.expect(pexpect.EOF)
    terminal.child.close()
    assert terminal.child.exitstatus == 0
