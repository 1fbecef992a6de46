"""``mtplx-kernel chat``: turns, commands, interrupts, and a real terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pexpect
import pytest

from mtplx_kernel import chat_command, cli
from mtplx_kernel.chat_command import Chat, talk
from mtplx_kernel.engine.request import FinishReason
from mtplx_kernel.errors import InvalidRequest
from tests.ipython.scripted import Answer, ScriptedEngine

LIMIT_S = 120
Said = Callable[[], tuple[str, str]]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def chat(engine: ScriptedEngine) -> Chat:
    scripted: Any = engine
    return Chat(scripted, {"seed": 7}, "Be brief.")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What was written to stdout and to stderr since the last call."""

    def read() -> tuple[str, str]:
        out, err = capsys.readouterr()
        return out, err

    return read


def sent(engine: ScriptedEngine) -> list[str]:
    """The messages of the last request, as `role: content`."""
    messages, options = engine.asked[-1]
    assert options == {"seed": 7}
    return [f"{m['role']}: {m['content']}" for m in messages]


def test_turns_follow_one_another(chat: Chat, engine: ScriptedEngine, said: Said) -> None:
    assert chat.take("Hi\n")
    assert said() == ("Hello there.\n", "")
    assert chat.take("  ")
    assert chat.take(" /etc/passwd, what is it?")
    assert sent(engine) == [
        "system: Be brief.",
        "user: Hi",
        "assistant: Hello there.",
        "user: /etc/passwd, what is it?",
    ]
    assert len(engine.asked) == 2


def test_an_interrupt_ends_the_answer_and_what_was_said_stays(
    chat: Chat, engine: ScriptedEngine, said: Said
) -> None:
    engine.answers = [Answer(interrupted_after=1)]
    with pytest.raises(KeyboardInterrupt):
        chat.take("Hi")
    assert said() == ("Hello there\n", "")
    chat.take("Go on")
    assert sent(engine)[1:] == ["user: Hi", "assistant: Hello there", "user: Go on"]


def test_a_second_interrupt_does_not_wait(
    chat: Chat, engine: ScriptedEngine, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["Hi", "Again", "/exit", "never"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    engine.answers = [Answer(interrupted_after=1, stuck=True)]
    talk(chat, "you> ")
    out, err = said()
    assert err == f"[interrupted; {chat_command.BUSY}]\n"
    assert sent(engine)[1:] == ["user: Again"]
    assert out.endswith("Hello there.\n")
    assert next(lines) == "never"


def test_where_nobody_types_an_interrupt_ends_all(
    chat: Chat, engine: ScriptedEngine, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["Hi", "never"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    engine.answers = [Answer(interrupted_after=1)]
    with pytest.raises(KeyboardInterrupt):
        talk(chat, "")
    assert said() == ("Hello there\n", "")
    assert next(lines) == "never"


def test_an_answer_that_had_ended_is_kept_whole(
    chat: Chat, engine: ScriptedEngine, said: Said
) -> None:
    engine.answers = [Answer(interrupted_after=1, done_before=True)]
    with pytest.raises(KeyboardInterrupt):
        chat.take("Hi")
    chat.take("Go on")
    assert sent(engine)[2] == "assistant: Hello there."


def test_a_cut_answer_says_how_to_get_more(chat: Chat, engine: ScriptedEngine, said: Said) -> None:
    engine.answers = [Answer(finish=FinishReason.LENGTH)]
    chat.take("Hi")
    assert said() == ("Hello there.\n", "[ended after 3 tokens; --max-tokens allows more]\n")


def test_a_failed_answer_is_one_line_and_no_turn(
    chat: Chat, engine: ScriptedEngine, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["Hi", "Again", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    engine.answers = [Answer(error="it broke\nhere")]
    talk(chat, "")
    assert said() == ("Hello there.\nHello there.\n", "it broke here\n")
    assert sent(engine)[1:] == ["user: Again"]


def test_the_mode_is_switched_and_said(chat: Chat, engine: ScriptedEngine, said: Said) -> None:
    for line, mode in (("off", "ar"), ("status", "ar"), ("on", "mtp")):
        assert chat.take(f"/mtp {line}")
        assert said() == (f"Default mode: {mode}\n", "")
        assert engine.mode == mode
    with pytest.raises(InvalidRequest, match="/mtp must be one of on, off, status, not 'x'"):
        chat.take("/mtp x")
    engine.mode, engine.mode_reason = "ar", "its caches cannot take tokens back"
    with pytest.raises(InvalidRequest, match="mode mtp cannot be had: its caches cannot take"):
        chat.take("/mtp on")
    chat.take("/mtp")
    assert said() == ("Default mode: ar: its caches cannot take tokens back\n", "")


def test_the_scheduler_is_switched_and_said(chat: Chat, engine: ScriptedEngine, said: Said) -> None:
    chat.take("/scheduler mtp_batch --width 4")
    assert (engine.scheduler, engine.settings) == ("mtp_batch", {"width": 4})
    assert said()[0].startswith("Scheduler:    mtp_batch (width 4, ")
    chat.take("/scheduler --refill")
    assert engine.settings == {"sealed": False}
    with pytest.raises(InvalidRequest, match="width=4 is refused; allowed: no options"):
        chat.take("/scheduler hyper --width 4")
    with pytest.raises(InvalidRequest, match="--width must be a whole number, 1 to 64, not 0"):
        chat.take("/scheduler --width 0")
    assert engine.scheduler == "mtp_batch"


def test_stats_are_those_of_the_last_answer(chat: Chat, said: Said) -> None:
    chat.take("/stats")
    assert said() == ("There is no answer yet.\n", "")
    chat.take("Hi")
    said()
    chat.take("/stats")
    lines = said()[0].splitlines()
    assert lines[0].startswith("<stop: 3 tokens, ")
    assert ["completion_tokens", "3"] in [line.split() for line in lines[1:]]
    assert ["seed", "7"] in [line.split() for line in lines[1:]]


def test_reset_forgets(chat: Chat, engine: ScriptedEngine, said: Said) -> None:
    chat.take("Hi")
    chat.take("/reset")
    chat.take("Ho")
    assert sent(engine) == ["system: Be brief.", "user: Ho"]
    assert said()[0] == "Hello there.\nThe conversation is forgotten.\nHello there.\n"


def test_help_lists_the_commands_and_exit_leaves(chat: Chat, said: Said) -> None:
    assert chat.take("/help")
    page = said()[0]
    assert all(f"  {verb.usage}" in page for verb in chat_command.COMMANDS.values())
    assert max(map(len, page.splitlines())) <= 78
    assert not chat.take("/exit")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/sats", "unknown command '/sats'; did you mean /stats? allowed: /mtp, /scheduler, "),
        ("/exit now", "that is a word too many; write /exit"),
        ("/mtp on off", "that is a word too many; write /mtp [on|off|status]"),
        ("/reset --all", "unknown option '--all'; none is allowed here"),
        ('/scheduler "', "a quote is not closed in: "),
    ],
)
def test_a_mistake_is_one_line_and_the_chat_goes_on(
    chat: Chat, said: Said, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    lines = iter([line, "Hi"])

    def read(prompt: str) -> str:
        if (found := next(lines, None)) is None:
            raise EOFError
        return found

    monkeypatch.setattr("builtins.input", read)
    talk(chat, "")
    out, err = said()
    assert out == "Hello there.\n"
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", "x"), "--temperature must be a number from 0 to 100, not 'x'"),
        (("--mode", "ar", "--no-mtp"), "--mode and --no-mtp exclude each other"),
        (("--logprobs", "2"), "unknown option '--logprobs'; allowed: --model, "),
        (("--scheduler-mode", "hyper", "--width", "4"), "scheduler 'hyper' is not tunable: "),
    ],
)
def test_options_are_refused_in_one_line(
    said: Said, options: tuple[str, ...], message: str
) -> None:
    assert cli.main(("chat", *options)) == 2
    out, err = said()
    assert out == ""
    assert err.startswith(f"mtplx-kernel: {message}")
    assert err.count("\n") == 1


def test_lines_from_a_pipe_are_answered_without_prompts(folder: Path, cache: Path) -> None:
    words = ["chat", str(folder), "--no-mtp", "--max-tokens", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "mtplx_kernel.cli", *words],
        input="Hi\n/stats\n/mtp status\n/scheduler hyper --width 4\n",
        capture_output=True,
        text=True,
        env={**os.environ, "MTPLX_KERNEL_CACHE": str(cache)},
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "you> " not in done.stdout
    assert "\n<length: 4 tokens, " in done.stdout
    assert "\nscheduler_mode     serial\n" in done.stdout
    assert done.stdout.endswith("\nDefault mode: ar\n")
    cut, refused = done.stderr.splitlines()
    assert cut == "[ended after 4 tokens; --max-tokens allows more]"
    assert refused.startswith("scheduler 'hyper' is not tunable: ")


def piped(
    folder: Path, cache: Path, source: bytes, **how: Any
) -> subprocess.CompletedProcess[bytes]:
    """A chat of four tokens an answer whose lines come from a pipe."""
    with tempfile.TemporaryFile() as lines:
        lines.write(source)
        lines.seek(0)
        return subprocess.run(
            [sys.executable, "-m", "mtplx_kernel.cli", "chat", str(folder), "--max-tokens", "4"],
            env={
                **os.environ,
                "MTPLX_KERNEL_CACHE": str(cache),
                "PYTHONIOENCODING": "ascii:strict",
            },
            timeout=LIMIT_S,
            **{"stdin": lines, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how},
        )


def test_bytes_that_are_no_text_are_refused_with_their_line(folder: Path, cache: Path) -> None:
    # The model's own text is nothing that ASCII could show, and is shown as far as it can be.
    done = piped(folder, cache, b"/mtp off\n\xff\xfe\nHi\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"Default mode: ar\n")
    assert done.stdout.isascii()
    refused, cut = done.stderr.decode().splitlines()
    assert refused.endswith("text must be valid Unicode")
    assert cut == "[ended after 4 tokens; --max-tokens allows more]"


def test_a_reader_that_goes_ends_the_chat_without_a_traceback(folder: Path, cache: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = piped(folder, cache, b"Hi\nHo\n", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_without_stdin_there_is_nobody_to_talk_with(folder: Path, cache: Path) -> None:
    done = subprocess.run(
        f'exec "{sys.executable}" -m mtplx_kernel.cli chat "{folder}" <&-',
        shell=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mtplx-kernel: chat reads from stdin, which is closed\n"


@pytest.fixture
def terminal(folder: Path, cache: Path) -> Iterator[pexpect.spawn[str]]:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "mtplx_kernel.cli", "chat", str(folder), "--max-tokens", "90000"],
        env={**os.environ, "TERM": "dumb", "MTPLX_KERNEL_CACHE": str(cache)},
        encoding="utf-8",
        codec_errors="replace",
        timeout=LIMIT_S,
        dimensions=(40, 80),
        echo=False,
    )
    yield child
    child.close(force=True)


def test_a_terminal_streams_interrupts_remembers_and_ends(terminal: pexpect.spawn[str]) -> None:
    terminal.expect_exact("Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.")
    terminal.expect_exact("you> ")
    # At the prompt there is nothing to stop. An interrupt that strikes just before readline waits
    # is seen at the next key only, so it is given again.
    terminal.sendintr()
    while terminal.expect_exact(["you> ", pexpect.TIMEOUT], timeout=1):
        terminal.sendintr()
    terminal.sendline("Once")
    # The tiny tokenizer's tokens are bytes: some text has come when there are several.
    terminal.expect_exact("\n")
    terminal.expect(r"[^\s.:]{3}")
    terminal.sendintr()
    terminal.expect_exact("[interrupted]")
    terminal.expect_exact("you> ")
    terminal.sendline("/stats")
    terminal.expect(r"<interrupted: (\d+) tokens")
    first = terminal.match[1]
    terminal.expect_exact("you> ")
    if find_spec("readline"):
        # Ctrl-P is the line before.
        terminal.sendline("\x10")
        terminal.expect_exact(f"<interrupted: {first} tokens")
        terminal.expect_exact("you> ")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
