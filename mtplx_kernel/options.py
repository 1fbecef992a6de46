"""The verbs of ``%mtplx`` and the options of a prompt and of each verb, as data."""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtplx_kernel.decoding.params import Acceptance, GenerationMode, SamplingParams
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.grammar import (
    HELP_WIDTH,
    Option,
    Verb,
    columns,
    named_as_options,
    number,
    read_options,
    whole,
)
from mtplx_kernel.scheduling.options import SchedulerMode
from mtplx_kernel.serve_options import SERVE_OPTIONS
from mtplx_kernel.show_options import SHOW_OPTIONS
from mtplx_kernel.words import unescape

FIRST_MODEL = "smollm2-135m"
"""What is named, or taken, where no model was."""


def _identifier(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError(f"must be a plain variable name, not {text!r}")
    return text


def _identifiers(text: str) -> tuple[str, ...]:
    return tuple(_identifier(name.strip()) for name in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _contents(text: str) -> str:
    try:
        return Path(text).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"must be a file with a JSON schema, not {text!r}: {error}") from error


MODES = tuple(str(mode) for mode in GenerationMode)
MODE = Option("--mode", str, "MODE", "mtp or ar, in place of the engine's default", values=MODES)

SAMPLING_OPTIONS = (
    MODE,
    Option("--max-tokens", whole, "N", "most tokens to generate"),
    Option("--temperature", number, "X", "0 is greedy"),
    Option("--top-p", number, "X", "keep the likeliest tokens that hold this much mass"),
    Option("--top-k", whole, "N", "keep the N likeliest tokens; 0 keeps all"),
    Option("--min-p", number, "X", "keep tokens at least X times as likely as the likeliest"),
    Option("--seed", whole, "N", "the same seed gives the same text"),
    Option("--depth", whole, "N", "drafts a cycle in mode mtp; the engine chooses by itself"),
    Option(
        "--acceptance",
        str,
        "RULE",
        "how drafts are judged: coupled (the tokens of mode ar), rejection or block (its law)",
        values=tuple(str(rule) for rule in Acceptance),
    ),
    Option("--stop", unescape, "TEXT", r"end before TEXT; may be repeated; \n works", repeats=True),
    Option("--repetition-penalty", number, "X", "above 1 makes recent tokens less likely"),
    Option("--presence-penalty", number, "X", "taken off the logits of recent tokens once"),
    Option("--frequency-penalty", number, "X", "taken off for each recent occurrence"),
    Option("--json-schema", _contents, "FILE", "the answer is JSON that fits the schema in FILE"),
    Option("--logprobs", whole, "N", "log-probabilities in the result, with N of the likeliest"),
)

SYSTEM = Option("--system", str, "TEXT", "a system message in front of the prompt")

PROMPT_OPTIONS = (
    SYSTEM,
    Option("--raw", None, "", "continue the prompt as it stands, without the chat template"),
    Option("--chat", None, "", "go on with the conversation; %mtplx reset ends it"),
)

PRIORITY = Option(
    "--priority", number, "X", "its share under scheduler cooperative, 0.01 to 100; 1 as others"
)

BATCH_OPTIONS = (
    Option(
        "--batch",
        None,
        "",
        "the cell holds several prompts, with a line of three dashes between two; all run at once",
    ),
    Option(
        "--samples",
        whole,
        "N",
        "answer each prompt N times at once, with the seeds S, S+1, ... where --seed S is given",
    ),
    PRIORITY,
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
    Option("--trace", None, "", "mark each token by how it came: draft, correction, bonus"),
)

REQUEST_OPTIONS = SAMPLING_OPTIONS + PROMPT_OPTIONS + BATCH_OPTIONS + CELL_OPTIONS

TAKES_VALUE = {option.flag: option.read is not None for option in REQUEST_OPTIONS}

SCHEDULERS = tuple(str(mode) for mode in SchedulerMode)

OPT_IN = Option("--experimental-cohorts", None, "", "opts in to scheduler mtp_cohort_experimental")

SCHEDULER_OPTIONS = (
    Option("--width", whole, "N", "most requests that run at once"),
    Option("--wait-ms", number, "X", "how long a cohort that is not full waits for more requests"),
    Option("--max-wait-ms", number, "X", "most that refills may delay requests of another kind"),
    Option("--prefill-cap", whole, "N", "most prompts that are read at once"),
    Option("--sealed", None, "", "nobody joins a cohort once it runs"),
    Option("--refill", None, "", "requests that wait take free slots at once (as without it)"),
    Option("--itl-ms", number, "X", "the target for the gap between two tokens of an answer"),
    Option("--ttft-ms", number, "X", "the target for the time to an answer's first token"),
    OPT_IN,
)

LOAD_OPTIONS = (
    Option("--mode", str, "MODE", "the default mode to start with: mtp or ar", values=MODES),
    Option("--queue-limit", whole, "N", "how many requests may wait"),
    Option(
        "--head",
        str,
        "PATH",
        "an MTP head's folder or file; none for no head; auto (as without it) looks for one",
        values=("auto", "none"),
        weights=True,
    ),
    Option("--memory-gb", float, "X", "how much memory weights and caches may take together"),
    Option("--prefix-cache-mb", number, "X", "memory for what prompts have in common; 0 for none"),
    Option("--scheduler", str, "NAME", "the scheduler to start with", values=SCHEDULERS),
    *SCHEDULER_OPTIONS,
)

_PROMPTS = Option("--prompts", whole, "N", "take the first N of the built-in prompts")
_ANSWER_TOKENS = Option("--max-tokens", whole, "N", "tokens of each answer")

VERIFY_OPTIONS = (
    _PROMPTS,
    _ANSWER_TOKENS,
    Option("--depth", whole, "N", "drafts a cycle; else 4 greedy, and the engine's choice"),
    Option("--temperature", number, "X", "of the sampled runs; 0 leaves them out"),
    Option("--draws", whole, "N", "seeds in the test of the sampling law; 0 leaves it out"),
)

TUNE_OPTIONS = (
    Option("--max-depth", whole, "N", "the deepest fixed depth to try"),
    _PROMPTS,
    _ANSWER_TOKENS,
    Option("--keep", None, "", "use the best in this and in later loads (as without it)"),
    Option("--no-keep", None, "", "measure only"),
    Option("--forget", None, "", "undo an earlier tuning, and measure nothing"),
)

BENCH_OPTIONS = (
    Option("--clients", whole, "N", "how many ask at a time, each one answer after the other"),
    Option("--modes", _names, "A,B", "the schedulers to compare with serial", values=SCHEDULERS),
    _PROMPTS,
    _ANSWER_TOKENS,
    OPT_IN,
)

VERBS = {
    "load": Verb("load NAME", "load a catalog name, a local folder or a hub id", LOAD_OPTIONS),
    "models": Verb("models", "list the models that are known, and which are on this machine"),
    "mode": Verb("mode [mtp|ar]", "show or set the default mode; reloads nothing"),
    "scheduler": Verb(
        "scheduler [NAME] [options]",
        "show how requests share the model, or change it; what runs finishes",
        SCHEDULER_OPTIONS,
    ),
    "status": Verb("status", "say what is loaded, on what it runs, and how it does"),
    "verify": Verb(
        "verify [options]", "check that drafts change no answer on this machine", VERIFY_OPTIONS
    ),
    "tune": Verb("tune [options]", "measure which depth is fastest here, and use it", TUNE_OPTIONS),
    "bench": Verb("bench [options]", "compare the schedulers on this model", BENCH_OPTIONS),
    "show": Verb(
        "show [WHAT] [options]",
        "watch it: timeline, acceptance, request [ID], controls, all (as without WHAT), or off",
        SHOW_OPTIONS,
    ),
    "serve": Verb(
        "serve [options]",
        "let other programs ask the model, by OpenAI's protocol over HTTP",
        SERVE_OPTIONS,
    ),
    "stop": Verb("stop", "end what serve began; the model stays"),
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
    priority: Any = None
    batch: bool = False
    samples: int | None = None
    variables: tuple[str, ...] = ()
    out: str | None = None
    markdown: bool | None = None
    quiet: bool = False
    trace: bool = False


def asks_help(words: Sequence[str]) -> bool:
    """Whether ``-h`` or ``--help`` stands among the options, and not as the value of one."""
    return any(
        word in {"-h", "--help"} and not TAKES_VALUE.get(before, False)
        for before, word in zip(["", *words], words, strict=False)
    )


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
        priority=given.get("priority"),
        batch=given.get("batch", False),
        samples=given.get("samples"),
        variables=tuple(name for group in given.get("vars", []) for name in group),
        out=given.get("out"),
        markdown=given.get("markdown"),
        quiet=given.get("quiet", False),
        trace=given.get("trace", False),
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
    with named_as_options(SAMPLING_OPTIONS):
        SamplingParams.of(dict(sampling))


def tune_wishes(given: dict[str, Any]) -> dict[str, Any]:
    """What ``tune`` was asked for, with `keep` and `forget` always among it.

    Raises
    ------
    InvalidRequest
        For options that exclude each other.
    """
    rest = dict(given)
    keep, no_keep, forget = (rest.pop(name, False) for name in ("keep", "no_keep", "forget"))
    if keep and no_keep:
        raise InvalidRequest("--keep and --no-keep exclude each other")
    if forget and len(given) > 1:
        raise InvalidRequest("--forget stands alone: it measures nothing")
    return {**rest, "keep": not no_keep, "forget": forget}


def scheduler_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a scheduler, by the names that the engine has for them.

    Raises
    ------
    InvalidRequest
        For options that exclude each other.
    """
    rest = dict(given)
    sealed, refill = rest.pop("sealed", False), rest.pop("refill", False)
    if sealed and refill:
        raise InvalidRequest("--sealed and --refill exclude each other")
    if sealed or refill:
        rest["sealed"] = sealed
    if rest.pop(OPT_IN.name, False):
        rest["experimental"] = True
    return rest


def _check_together(options: RequestOptions) -> None:
    samples = options.samples
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise InvalidRequest(f"--samples must be a whole number at least 1, not {samples!r}")
    if options.chat and (options.batch or samples is not None):
        flag = "--batch" if options.batch else "--samples"
        raise InvalidRequest(f"{flag} and --chat exclude each other: a conversation has one answer")
    for name in ("batch", "samples", "quiet", "markdown") if options.trace else ():
        if getattr(options, name):
            raise InvalidRequest(
                f"--{name} and --trace exclude each other: it shows one plain text"
            )
    if options.raw and options.chat:
        raise InvalidRequest("--raw and --chat exclude each other: raw text has no turns")
    if options.raw and options.system is not None:
        raise InvalidRequest("--raw and --system exclude each other: raw text has no messages")


def help_text() -> str:
    """The page that ``%mtplx``, ``%mtplx help`` and ``%mtplx?`` show."""
    lines = ["Run a language model in this kernel.", "", "Verbs:"]
    lines += columns([(f"%mtplx {verb.usage}", verb.help) for verb in VERBS.values()])
    lines += ["", "A prompt of several lines, taken as it stands:"]
    lines += ["  %%mtplx [options]", "  PROMPT", ""]
    for title, options in (
        ("Options of %%mtplx and ask, sampling:", SAMPLING_OPTIONS),
        ("Options of %%mtplx and ask, prompt:", PROMPT_OPTIONS),
        ("Options of %%mtplx and ask, several answers:", BATCH_OPTIONS),
        ("Options of %%mtplx and ask, result:", CELL_OPTIONS),
        ("Options of load:", LOAD_OPTIONS[: -len(SCHEDULER_OPTIONS)]),
        ("Options of scheduler, and of load --scheduler:", SCHEDULER_OPTIONS),
        ("Options of verify:", VERIFY_OPTIONS),
        ("Options of tune:", TUNE_OPTIONS),
        ("Options of bench:", BENCH_OPTIONS),
        ("Options of show:", SHOW_OPTIONS),
        ("Options of serve:", SERVE_OPTIONS),
    ):
        lines += [title, *columns([(f"{o.flag} {o.metavar}", o.help) for o in options]), ""]
    lines += textwrap.wrap(
        "The result is the cell's value, and is bound to _mtplx. A ; at the end of a prompt hides "
        "the line of stats. Defaults: %config MtplxMagics. "
        "The kernel's interrupt stops an answer and keeps what is there.",
        HELP_WIDTH,
    )
    return "\n".join(lines)
