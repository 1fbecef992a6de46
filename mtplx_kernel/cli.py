"""``mtplx-kernel`` on the command line: the same calls as in Python and in the magics, thin.

Nothing heavy is imported before a command runs, so that its help is there at once.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtplx_kernel import chat_command, options, serve_command
from mtplx_kernel.errors import InvalidRequest, ModelNotFound, MTPLXError
from mtplx_kernel.grammar import (
    Option,
    Verb,
    columns,
    named_as_options,
    read_options,
    unknown,
    whole,
)

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

PROGRAM = "mtplx-kernel"
FAILED, MISUSED, INTERRUPTED = 1, 2, 130

UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}


def _count(text: str) -> int:
    unit = UNITS.get(text[-1:].upper())
    try:
        number = round(float(text[:-1]) * unit) if unit else int(text)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise ValueError(f"must be a count above 0, such as 5000 or 24M, not {text!r}")
    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ValueError(f"must be a number above 0, not {text!r}")
    return number


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"must be a whole number at least 0, not {text!r}")
    return int(text)


HEAD = next(option for option in options.LOAD_OPTIONS if option.flag == "--head")

CONVERT_OPTIONS = (
    Option("--bits", whole, "N", "quantise to 4, 6 or 8 bits; without it nothing is quantised"),
    Option("--group-size", whole, "N", "weights that share a scale: 32, 64 or 128"),
    Option("--head-bits", whole, "N", "bits of the MTP head; 16 keeps its precision"),
)

DISTILL_OPTIONS = (
    Option("--out", Path, "DIR", "the folder for the head, and for what a run goes on from"),
    Option("--tokens", _count, "N", "tokens of the model's own text to learn from, such as 24M"),
    Option("--conversation", _count, "N", "tokens of a conversation"),
    Option("--length", _count, "N", "tokens of a training row, which holds conversations"),
    Option("--depth", _count, "N", "how many tokens ahead it learns to draft"),
    Option("--minutes", _positive, "X", "minutes of training"),
    Option("--draft-vocab", _count, "N", "draft only the N commonest ids; the text stays exact"),
    Option("--batch", _count, "N", "rows of a training step"),
    Option("--writing-batch", _count, "N", "conversations that the model writes at once"),
    Option("--seed", _seed, "N", "of what is random"),
    Option("--from", str, "HEAD", "train on a head of this model, with its draft vocabulary"),
    Option("--width", _count, "N", "columns of the head's feed-forward layer"),
    Option("--aim", _positive, "T", "temperature of the decoding that the head is for"),
)
DISTILL_NAMES = {"batch": "rows", "writing_batch": "writing_rows", "from": "begin"}
"""Options that distillation calls otherwise."""

PICTURE = Option("--picture", Path, "FILE", "also write the picture, as a PNG")

Words = list[str]
Given = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: how it is written, the plain words that it needs, and what runs it."""

    verb: Verb
    words: int
    run: Callable[[Words, Given], int]
    more: int = 0
    """How many plain words it takes beside those."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns
    -------
    int
        0; 1 if something failed (a check, too), 2 for a mistake in what was asked, 130 if it was
        interrupted. Errors are one line on stderr.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words)
        # Here, where a reader who has gone is noticed in peace.
        print(end="", flush=True)
        return code
    except MTPLXError as error:
        print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
        return MISUSED if isinstance(error, InvalidRequest | ModelNotFound) else FAILED
    except KeyboardInterrupt as stop:
        print(": ".join([PROGRAM, "interrupted", *map(str, stop.args)]), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does: the end of the process flushes to none.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(words: Words) -> int:
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_page())
        return 0
    if words[0] == "--version":
        import mtplx_kernel

        print(f"{PROGRAM} {mtplx_kernel.__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        raise InvalidRequest(f"{unknown('command', name, COMMANDS)}; {PROGRAM} --help lists them")
    command = COMMANDS[name]
    if {"-h", "--help"} & set(rest):
        print(_command_page(command))
        return 0
    given, plain = read_options(command.verb.options, rest)
    if not 0 <= len(plain) - command.words <= command.more:
        problem = "a word is missing" if len(plain) < command.words else "that is a word too many"
        raise InvalidRequest(f"{problem}; write {PROGRAM} {command.verb.usage}")
    with named_as_options(command.verb.options):
        return command.run(plain, given)


def _page() -> str:
    rows = [(f"{PROGRAM} {command.verb.usage}", command.verb.help) for command in COMMANDS.values()]
    lines = ["Language models with multi-token prediction.", "", *columns(rows), ""]
    return "\n".join([*lines, f"{PROGRAM} COMMAND --help shows the options of a command."])


def _command_page(command: Command) -> str:
    lines = [f"{PROGRAM} {command.verb.usage}", "", f"  {command.verb.help}"]
    if command.verb.options:
        lines += ["", *columns([(f"{o.flag} {o.metavar}", o.help) for o in command.verb.options])]
    return "\n".join(lines)


def _convert(words: Words, given: Given) -> int:
    from mtplx_kernel.models.convert import convert

    source, destination = words
    print(convert(source, Path(destination), **{"bits": None, **given}))
    return 0


def _distill(words: Words, given: Given) -> int:
    out = given.pop("out", None)
    if out is None:
        raise InvalidRequest("--out is needed: the folder that the head is written to")
    from mtplx_kernel.models.catalog import resolve
    from mtplx_kernel.training.command import say
    from mtplx_kernel.training.distill import Options, distill

    folder = resolve(words[0]).path
    chosen = {DISTILL_NAMES.get(name, name): value for name, value in given.items()}
    try:
        distill(folder, out, Options(**chosen), say=say)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on from here") from None
    print(f"The head is in {out}: load {words[0]} with --head {out}")
    return 0


def _fetch(words: Words, given: Given) -> int:
    from mtplx_kernel.models.catalog import resolve

    found = resolve(words[0])
    licence = f" ({found.licence})" if found.licence else ""
    print(f"{found.name}{licence} is in {found.path}")
    return 0


def _verify(words: Words, given: Given) -> int:
    from mtplx_kernel.checks.verify import verify

    with _loaded(words, given) as engine:
        report = verify(engine, **given)
    print(report)
    return 0 if report.passed else FAILED


def _tune(words: Words, given: Given) -> int:
    picture = given.pop("picture", None)
    head = {"head": given.pop("head")} if "head" in given else {}
    wishes = options.tune_wishes(given)
    from mtplx_kernel.checks.tune import forget, tune

    with _loaded(words, head) as engine:
        if wishes.pop("forget"):
            print(forget(engine))
            return 0
        report = tune(engine, **wishes)
    print(report)
    if picture is not None:
        _write_picture(picture, report._repr_png_())
    return 0


def _bench(words: Words, given: Given) -> int:
    picture = given.pop("picture", None)
    head = {"head": given.pop("head")} if "head" in given else {}
    wishes = options.scheduler_settings(given)
    from mtplx_kernel.checks.bench import bench

    with _loaded(words, head) as engine:
        report = bench(engine, **wishes)
    print(report)
    if picture is not None:
        _write_picture(picture, report._repr_png_())
    return 0


def _write_picture(file: Path, drawn: bytes | None) -> None:
    if drawn is None:
        raise MTPLXError("no picture was drawn, as matplotlib is missing: pip install matplotlib")
    try:
        file.write_bytes(drawn)
    except OSError as error:
        raise InvalidRequest(f"--picture cannot be written to {file}: {error}") from error


def _doctor(words: Words, given: Given) -> int:
    from mtplx_kernel.checks.doctor import examine

    found = examine()
    print(found)
    return FAILED if found.problems else 0


def _loaded(words: Words, given: Given) -> Engine:
    import mtplx_kernel

    loading = {"head": given.pop("head")} if "head" in given else {}
    engine: Engine = mtplx_kernel.load(words[0], **loading)
    return engine


COMMANDS = {
    "fetch": Command(Verb("fetch MODEL", "download a model, and say where it is"), 1, _fetch),
    "convert": Command(
        Verb(
            "convert SRC DST [options]",
            "make an mlx-lm folder, quantised or not, that keeps the MTP head",
            CONVERT_OPTIONS,
        ),
        2,
        _convert,
    ),
    "distill": Command(
        Verb(
            "distill MODEL --out DIR [options]",
            "train an MTP head for a model on its own text",
            DISTILL_OPTIONS,
        ),
        1,
        _distill,
    ),
    "verify": Command(
        Verb(
            "verify MODEL [options]",
            options.VERBS["verify"].help,
            (*options.VERIFY_OPTIONS, HEAD),
        ),
        1,
        _verify,
    ),
    "tune": Command(
        Verb(
            "tune MODEL [options]",
            options.VERBS["tune"].help,
            (*options.TUNE_OPTIONS, HEAD, PICTURE),
        ),
        1,
        _tune,
    ),
    "bench": Command(
        Verb(
            "bench MODEL [options]",
            options.VERBS["bench"].help,
            (*options.BENCH_OPTIONS, HEAD, PICTURE),
        ),
        1,
        _bench,
    ),
    "serve": Command(
        Verb(
            "serve [MODEL] [options]",
            "let other programs ask a model, by OpenAI's protocol over HTTP",
            serve_command.SERVE_OPTIONS,
        ),
        0,
        serve_command.serve,
        more=1,
    ),
    "chat": Command(
        Verb(
            "chat [MODEL] [options]",
            "talk with a model here; /help lists what can be said beside prompts",
            chat_command.CHAT_OPTIONS,
        ),
        0,
        chat_command.chat,
        more=1,
    ),
    "doctor": Command(
        Verb("doctor", "say what this installation runs on, and what is wrong"), 0, _doctor
    ),
}


if __name__ == "__main__":
    sys.exit(main())
