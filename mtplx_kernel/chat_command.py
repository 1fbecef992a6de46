"""``mtplx-kernel chat``: a conversation in the terminal, with commands between its turns."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from mtplx_kernel import launch, options, report
from mtplx_kernel.conversation import Conversation, Message
from mtplx_kernel.display import PrintSink
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import InvalidRequest, RequestFailed
from mtplx_kernel.grammar import Verb, columns, named_as_options, read_options, unknown
from mtplx_kernel.waiting import wait
from mtplx_kernel.words import split_words

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

# The mode is among those of launching, and log-probabilities would not be shown.
_ELSEWHERE = ("--mode", "--logprobs")
CHAT_OPTIONS = (
    *launch.LAUNCH_OPTIONS,
    *(option for option in options.SAMPLING_OPTIONS if option.flag not in _ELSEWHERE),
    options.SYSTEM,
)

PROMPT = "you> "
INTERRUPTED = "interrupted"
BUSY = "the model is busy with one step and lets go after it"

COMMANDS = {
    "/mtp": Verb("/mtp [on|off|status]", "draft (mode mtp) or not (mode ar), or say which"),
    "/scheduler": Verb(
        "/scheduler [NAME] [options]",
        "show how requests share the model, or change it",
        options.SCHEDULER_OPTIONS,
    ),
    "/stats": Verb("/stats", "say what the last answer cost"),
    "/reset": Verb("/reset", "forget the conversation"),
    "/help": Verb("/help", "show this page"),
    "/exit": Verb("/exit", "leave, as Ctrl-D does"),
}
MOST_WORDS = {"/mtp": 1, "/scheduler": 1}
"""How many plain words follow; none, where nothing is said."""


def chat(words: list[str], given: dict[str, Any]) -> int:
    """Talk with a model until the input ends.

    Returns
    -------
    int
        0.
    """
    name, loading = launch.chosen(words, given)
    system = given.pop("system", "")
    options.check_sampling(given)
    if sys.stdin is None:
        raise InvalidRequest("chat reads from stdin, which is closed")
    # Bytes that are no text are refused with their line, and what cannot be shown is a "?".
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)
    interactive = sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()
    import mtplx_kernel

    if interactive:
        print(f"Loading {name} ...", flush=True)
    with mtplx_kernel.load(name, **loading) as engine:
        if interactive:
            print(report.model_line(engine.status()))
            print("Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.")
        talk(Chat(engine, given, system), PROMPT if interactive else "")
    return 0


def talk(conversation: Chat, prompt: str) -> None:
    """Read lines and give them to the conversation, until one ends it or there are no more.

    Parameters
    ----------
    prompt
        What stands before a line; empty where nobody types, so an interrupt is for the process.
    """
    with contextlib.suppress(ImportError):
        # Where there is one, `input` edits lines and remembers them.
        importlib.import_module("readline")
    going_on = True
    while going_on:
        try:
            line = input(prompt)
        except EOFError:
            if prompt:
                print()
            return
        except KeyboardInterrupt:
            if not prompt:
                raise
            print()
            continue
        try:
            going_on = conversation.take(line)
        except KeyboardInterrupt as stop:
            if not prompt:
                raise
            _note("; ".join([INTERRUPTED, *map(str, stop.args)]))
        except (InvalidRequest, RequestFailed) as error:
            print(" ".join(str(error).split()), file=sys.stderr, flush=True)


class Chat:
    """A conversation with a model.

    Parameters
    ----------
    engine
        What answers.
    asked
        Sampling options of every answer.
    system
        A system message; empty for none.
    """

    def __init__(self, engine: Engine, asked: dict[str, Any], system: str) -> None:
        self._engine = engine
        self._asked = asked
        self._system = system
        self._last: Generation | None = None
        self.conversation = Conversation()

    def take(self, line: str) -> bool:
        """Answer a prompt, or do what a line that begins with a slash says.

        Returns
        -------
        bool
            Whether the conversation goes on.

        Raises
        ------
        InvalidRequest, RequestFailed
            If it cannot be done; the conversation is as before.
        KeyboardInterrupt
            If the answer was interrupted; what was said of it is kept.
        """
        if line.startswith("/"):
            return self._command(split_words(line))
        if line.strip():
            self._answer(line.strip())
        return True

    def _answer(self, prompt: str) -> None:
        messages = self.conversation.messages(prompt, None, self._system)
        try:
            handle = self._engine.submit(messages, **self._asked)
        except InvalidRequest as error:
            if self.conversation.turns and "context" in str(error):
                raise InvalidRequest(f"{error}; /reset starts a new conversation") from error
            raise
        try:
            generation = wait(handle, PrintSink())
        except KeyboardInterrupt:
            if not handle.done:
                raise KeyboardInterrupt(BUSY) from None
            # It had ended, and was only being shown.
            self._keep(messages, handle.result())
            raise
        self._keep(messages, generation)
        if generation.finish_reason is FinishReason.INTERRUPTED:
            raise KeyboardInterrupt
        if generation.finish_reason is FinishReason.LENGTH:
            n = generation.stats.completion_tokens
            _note(f"ended after {n} tokens; --max-tokens allows more")

    def _keep(self, messages: Sequence[Message], generation: Generation) -> None:
        self._last = generation
        # What was said before an interrupt was said: the model remembers it as its reader does.
        if generation.text.strip():
            self.conversation.keep(messages, generation.text)

    def _command(self, words: Sequence[str]) -> bool:
        name, *rest = words
        if name not in COMMANDS:
            hint = "a prompt that begins with a slash takes a space before it"
            raise InvalidRequest(f"{unknown('command', name, COMMANDS)}; {hint}")
        verb = COMMANDS[name]
        given, plain = read_options(verb.options, rest)
        if len(plain) > MOST_WORDS.get(name, 0):
            raise InvalidRequest(f"that is a word too many; write {verb.usage}")
        word = plain[0] if plain else None
        actions: dict[str, Callable[[], None]] = {
            "/mtp": lambda: self._mtp(word or "status"),
            "/scheduler": lambda: self._scheduler(word, given),
            "/stats": self._stats,
            "/reset": self._reset,
            "/help": self._help,
        }
        if name in actions:
            actions[name]()
        return name != "/exit"

    def _mtp(self, wish: str) -> None:
        modes = {"on": "mtp", "off": "ar", "status": None}
        if wish not in modes:
            raise InvalidRequest(f"/mtp must be one of {', '.join(modes)}, not {wish!r}")
        if modes[wish] is not None:
            self._engine.configure(mode=modes[wish])
        print(report.mode_line(self._engine.mode, self._engine.mode_reason))

    def _scheduler(self, name: str | None, given: dict[str, Any]) -> None:
        settings = options.scheduler_settings(given)
        if name is not None or settings:
            with named_as_options(options.SCHEDULER_OPTIONS):
                self._engine.configure(scheduler=name, **settings)
        print(report.scheduler_text(self._engine.status()))

    def _stats(self) -> None:
        if self._last is None:
            print("There is no answer yet.")
            return
        print(self._last)
        rows = self._last.stats.as_dict().items()
        print(report.table(("STAT", "VALUE"), [(name, _shown(value)) for name, value in rows]))

    def _reset(self) -> None:
        self.conversation = Conversation()
        print("The conversation is forgotten.")

    def _help(self) -> None:
        print("\n".join(columns([(verb.usage, verb.help) for verb in COMMANDS.values()])))
        print("All else is a prompt, also a line with a slash after a space.")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _note(text: str) -> None:
    print(f"[{text}]", file=sys.stderr, flush=True)
