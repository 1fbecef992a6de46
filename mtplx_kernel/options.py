"""The options of a prompt and of the verbs: one grammar for all magics."""

from __future__ import annotations

import difflib
import keyword
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.words import unescape

HELP_WIDTH = 78


def _whole(text: str) -> int | str:
    # What is no number stays text, so that SamplingParams alone says what is allowed.
    try:
        return int(text)
    except ValueError:
        return text


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _identifier(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError(f"must be a plain variable name, not {text!r}")
    return text


def _identifiers(text: str) -> tuple[str, ...]:
    return tuple(_identifier(name.strip()) for name in text.split(","))


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flag, how its value is read (None: it takes none), and its help line."""

    flag: str
    read: Callable[[str], Any] | None
    metavar: str
    help: str
    repeats: bool = False
    values: tuple[str, ...] = ()
    """What completion offers as its value."""

    @property
    def name(self) -> str:
        """The option as a Python name."""
        return self.flag[2:].replace("-", "_")


MODES = tuple(str(mode) for mode in GenerationMode)
MODE = Option("--mode", str, "MODE", "mtp or ar, in place of the engine's default", values=MODES)

SAMPLING_OPTIONS = (
    MODE,
    Option("--max-tokens", _whole, "N", "most tokens to generate"),
    Option("--temperature", _number, "X", "0 is greedy"),
    Option("--top-p", _number, "X", "keep the likeliest tokens that hold this much mass"),
    Option("--top-k", _whole, "N", "keep the N likeliest tokens; 0 keeps all"),
    Option("--min-p", _number, "X", "keep tokens at least X times as likely as the likeliest"),
    Option("--seed", _whole, "N", "the same seed gives the same text"),
    Option("--depth", _whole, "N", "drafts a cycle in mode mtp; the engine chooses by itself"),
    Option("--stop", unescape, "TEXT", r"end before TEXT; may be repeated; \n works", repeats=True),
    Option("--repetition-penalty", _number, "X", "above 1 makes recent tokens less likely"),
    Option("--presence-penalty", _number, "X", "taken off the logits of recent tokens once"),
    Option("--frequency-penalty", _number, "X", "taken off for each recent occurrence"),
)

PROMPT_OPTIONS = (
    Option("--system", str, "TEXT", "a system message in front of the prompt"),
    Option("--raw", None, "", "continue the prompt as it stands, without the chat template"),
    Option("--chat", None, "", "go on with the conversation; %mtplx reset ends it"),
)

CELL_OPTIONS = (
    Option(
        "--vars",
        _identifiers,
        "A,B",
        "put these variables in place of {A} and {B}; other braces stay",
        repeats=True,
    ),
    Option("--out", _identifier, "NAME", "also bind the result to NAME"),
    Option("--markdown", None, "", "render the answer as Markdown (printed in a terminal)"),
    Option("--quiet", None, "", "show nothing; the result is in _mtplx and --out"),
)

REQUEST_OPTIONS = SAMPLING_OPTIONS + PROMPT_OPTIONS + CELL_OPTIONS

TAKES_VALUE = {option.flag: option.read is not None for option in REQUEST_OPTIONS}

LOAD_OPTIONS = (
    Option("--mode", str, "MODE", "the default mode to start with: mtp or ar", values=MODES),
    Option("--queue-limit", _whole, "N", "how many requests may wait"),
)

NO_OPTIONS: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Verb:
    """One ``%mtplx`` verb: how it is written, what it does, its options."""

    usage: str
    help: str
    options: tuple[Option, ...] = NO_OPTIONS


VERBS = {
    "load": Verb("load NAME", "load a catalog name, a local folder or a hub id", LOAD_OPTIONS),
    "models": Verb("models", "list the models that are known, and which are on this machine"),
    "mode": Verb("mode [mtp|ar]", "show or set the default mode; reloads nothing"),
    "status": Verb("status", "say what is loaded, on what it runs, and how it does"),
    "ask": Verb("ask [options] PROMPT", "answer a prompt of one line", REQUEST_OPTIONS),
    "reset": Verb("reset", "forget the conversation of --chat"),
    "unload": Verb("unload", "close the engine and free its memory"),
    "help": Verb("help", "show this page"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a prompt was asked with; `sampling` holds only the options that were given."""

    sampling: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    raw: bool = False
    chat: bool = False
    variables: tuple[str, ...] = ()
    out: str | None = None
    markdown: bool | None = None
    quiet: bool = False


def read_options(
    allowed: Sequence[Option], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Read words as options, written in full; what is no option comes back in order.

    The word after an option that takes a value is its value, however it begins; only another
    option's name is not taken for one (``--stop=--raw`` says that it is meant).

    Returns
    -------
    tuple of dict and list
        The values of the given options by name (a list where an option may be repeated), and the
        plain words.

    Raises
    ------
    InvalidRequest
        For an unknown option, a missing value or a bad value.
    """
    by_flag = {option.flag: option for option in allowed}
    found: dict[str, Any] = {}
    rest: list[str] = []
    left = deque(words)
    while left:
        word = left.popleft()
        if word == "--":
            return found, [*rest, *left]
        flag, equals, text = word.partition("=")
        option = by_flag.get(flag)
        if option is None:
            if word.startswith("--"):
                raise InvalidRequest(unknown("option", flag, by_flag))
            rest.append(word)
            continue
        if option.read is None and equals:
            raise InvalidRequest(f"{flag} takes no value")
        if option.read is not None and not equals:
            if not left or left[0].partition("=")[0] in by_flag:
                raise InvalidRequest(f"{flag} needs a value: {flag} {option.metavar}")
            text = left.popleft()
        value = _value(option, text)
        found[option.name] = [*found.get(option.name, []), value] if option.repeats else value
    return found, rest


def _value(option: Option, text: str) -> Any:
    if option.read is None:
        return True
    try:
        return option.read(text)
    except ValueError as err:
        raise InvalidRequest(f"{option.flag} {err}") from err


def asks_help(words: Sequence[str]) -> bool:
    """Whether ``-h`` or ``--help`` stands among the options, and not as the value of one."""
    return any(
        word in {"-h", "--help"} and not TAKES_VALUE.get(before, False)
        for before, word in zip(["", *words], words, strict=False)
    )


def unknown(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Say that `name` is no known `kind`, with the nearest one if any is near."""
    names = list(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    listed = f"allowed: {', '.join(names)}" if names else "none is allowed here"
    return f"unknown {kind} {name!r}; {hint}{listed}"


def read_request(words: Sequence[str], command: str) -> RequestOptions:
    """Read the options of a prompt.

    Raises
    ------
    InvalidRequest
        For anything that is not an option, or a bad value; before any work is done.
    """
    given, rest = read_options(REQUEST_OPTIONS, words)
    if rest:
        raise InvalidRequest(f"{command} takes options only, not {rest[0]!r}; see %mtplx help")
    names = {option.name for option in SAMPLING_OPTIONS}
    sampling = {name: value for name, value in given.items() if name in names}
    check_sampling(sampling)
    options = RequestOptions(
        sampling=sampling,
        system=given.get("system"),
        raw=given.get("raw", False),
        chat=given.get("chat", False),
        variables=tuple(name for group in given.get("vars", []) for name in group),
        out=given.get("out"),
        markdown=given.get("markdown"),
        quiet=given.get("quiet", False),
    )
    _check_together(options)
    return options


def read_words(
    verb: str, words: Sequence[str], most: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Read a verb's options and its plain words, of which there may be at most `most`.

    Raises
    ------
    InvalidRequest
        For an option the verb does not have, a bad value, or a word too many.
    """
    given, rest = read_options(VERBS[verb].options, words)
    if most is not None and len(rest) > most:
        usage = f"%mtplx {VERBS[verb].usage}"
        raise InvalidRequest(f"{rest[most]!r} is one word too many; write {usage}")
    check_sampling({name: value for name, value in given.items() if name == MODE.name})
    return given, rest


def check_sampling(sampling: dict[str, Any]) -> None:
    """Refuse bad sampling values, in the words of the options.

    Raises
    ------
    InvalidRequest
        For the first bad value.
    """
    try:
        SamplingParams.of(dict(sampling))
    except InvalidRequest as err:
        name, _, problem = str(err).partition(" ")
        flags = {option.name: option.flag for option in SAMPLING_OPTIONS}
        raise InvalidRequest(f"{flags.get(name, name)} {problem}") from err


def _check_together(options: RequestOptions) -> None:
    if options.raw and options.chat:
        raise InvalidRequest("--raw and --chat exclude each other: raw text has no turns")
    if options.raw and options.system is not None:
        raise InvalidRequest("--raw and --system exclude each other: raw text has no messages")


def help_text() -> str:
    """The page that ``%mtplx``, ``%mtplx help`` and ``%mtplx?`` show."""
    lines = ["Run a language model in this kernel.", "", "Verbs:"]
    lines += _columns([(f"%mtplx {verb.usage}", verb.help) for verb in VERBS.values()])
    lines += ["", "A prompt of several lines, taken as it stands:"]
    lines += ["  %%mtplx [options]", "  PROMPT", ""]
    for title, options in (
        ("Options of %%mtplx and ask, sampling:", SAMPLING_OPTIONS),
        ("Options of %%mtplx and ask, prompt:", PROMPT_OPTIONS),
        ("Options of %%mtplx and ask, result:", CELL_OPTIONS),
        ("Options of load:", LOAD_OPTIONS),
    ):
        lines += [title, *_columns([(f"{o.flag} {o.metavar}", o.help) for o in options]), ""]
    lines += textwrap.wrap(
        "The result is the cell's value, and is bound to _mtplx. A ; at the end of a prompt hides "
        "the line of stats. Defaults: %config MtplxMagics. "
        "The kernel's interrupt stops an answer and keeps what is there.",
        HELP_WIDTH,
    )
    return "\n".join(lines)


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(left.strip()) for left, _ in rows) + 2
    lines: list[str] = []
    for left, right in rows:
        lines += textwrap.wrap(
            right,
            HELP_WIDTH,
            initial_indent=f"  {left.strip():<{width}}",
            subsequent_indent=" " * (width + 2),
        )
    return lines
