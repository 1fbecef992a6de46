"""``%mtplx`` and ``%%mtplx``: parse, call the engine, show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from traitlets import Bool, Float, Int, TraitError, Unicode, validate

from mtplx_kernel import grammar, options, report
from mtplx_kernel.conversation import Conversation, Message, substitute
from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.display import QuietResults, has_front_end, sink_for
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import EngineClosed, InvalidRequest, MTPLXError
from mtplx_kernel.waiting import ended, wait
from mtplx_kernel.words import split_prompt, split_words

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from mtplx_kernel.checks.tune_report import TuneReport
    from mtplx_kernel.checks.verify_report import VerifyReport
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.extension import EngineHolder

RESULT_NAME = "_mtplx"
FIRST_MODEL = "smollm2-135m"
FINISHED = (FinishReason.STOP, FinishReason.LENGTH)

SAMPLING_TRAITS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class GenerationInterrupted(KeyboardInterrupt):
    """The kernel's interrupt ended an answer or a load; shown as one line, without a traceback.

    The cell counts as failed, so that "Run all" stops where the user stopped it.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn the package's errors into `UsageError`, which IPython shows as one line."""
    try:
        yield
    except MTPLXError as err:
        raise UsageError(" ".join(str(err).split())) from err


@contextmanager
def _one_line_check(state: str, allowed: Sequence[grammar.Option]) -> Iterator[None]:
    """Say in one line that a check was interrupted, and refuse values by their options."""
    with grammar.named_as_options(allowed):
        try:
            yield
        except KeyboardInterrupt:
            raise GenerationInterrupted(f"Interrupted: {state}.") from None


@magics_class
class MtplxMagics(Magics):
    """Defaults of ``%%mtplx`` and ``%mtplx ask``; an option overrides them.

    Parameters
    ----------
    shell
        The IPython shell.
    engines
        Who holds the loaded engine.
    results
        The display hook that can pass over a result.
    """

    max_tokens = Int(256, help="Most tokens to generate.").tag(config=True)
    temperature = Float(0.0, help="0 is greedy.").tag(config=True)
    top_p = Float(1.0, help="Keep the likeliest tokens with this much mass.").tag(config=True)
    top_k = Int(0, help="Keep the k likeliest tokens; 0 keeps all.").tag(config=True)
    min_p = Float(0.0, help="Keep tokens this much as likely as the likeliest.").tag(config=True)
    repetition_penalty = Float(1.0, help="1 is off.").tag(config=True)
    presence_penalty = Float(0.0, help="0 is off.").tag(config=True)
    frequency_penalty = Float(0.0, help="0 is off.").tag(config=True)
    mode = Unicode(
        "", help="mtp or ar: the engine's default mode. Empty: what the model can do best."
    ).tag(config=True)
    system = Unicode("", help="A system message for every prompt; empty for none.").tag(config=True)
    stream = Bool(True, help="Show the text as it is decoded, not at the end.").tag(config=True)
    markdown = Bool(False, help="Render answers as Markdown.").tag(config=True)

    def __init__(
        self, shell: InteractiveShell, engines: EngineHolder, results: QuietResults
    ) -> None:
        self._engines = engines
        self._results = results
        self.conversation = Conversation()
        super().__init__(shell=shell)

    @validate(*SAMPLING_TRAITS)
    def _valid_sampling(self, proposal: Mapping[str, Any]) -> Any:
        return _checked(proposal["trait"].name, proposal["value"])

    @validate("mode")
    def _valid_mode(self, proposal: Mapping[str, Any]) -> Any:
        mode, engine = proposal["value"], self._engines.current
        if mode:
            _checked("mode", mode)
        if engine is not None:
            try:
                engine.configure(mode=mode or ("ar" if engine.mode_reason else "mtp"))
            except MTPLXError as err:
                raise TraitError(str(err)) from err
        return mode

    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def mtplx(  # noqa: D102
        self, line: str, cell: str | None = None, local_ns: Mapping[str, Any] | None = None
    ) -> object:
        with one_line_errors():
            if cell is not None:
                return self._cell(line, cell, local_ns or {})
            verb, rest = (*line.split(maxsplit=1), "", "")[:2]
            if not rest:
                verb = verb.removesuffix(";") or "help"
            if verb == "ask":
                return self._ask(rest, local_ns or {})
            # IPython's own {name} and $name, with the names of the caller of run_line_magic.
            expanded = self._shell.var_expand(rest.rstrip().removesuffix(";"), depth=2)
            words = split_words(expanded)
            if verb in {"?", "-h", "--help"}:
                verb = "help"
            if verb not in options.VERBS:
                raise InvalidRequest(grammar.unknown("verb", verb, options.VERBS))
            actions: dict[str, Callable[[list[str]], object]] = {
                "load": self._load,
                "models": self._models,
                "mode": self._mode,
                "status": self._status,
                "verify": self._verify,
                "tune": self._tune,
                "reset": self._reset,
                "unload": self._unload,
                "help": self._help,
            }
            value = actions[verb](words)
            if value is not None and line.rstrip().endswith(";"):
                self._results.silence(value)
            return value

    # `%mtplx?` shows the same page as `%mtplx help`.
    mtplx.__doc__ = options.help_text()

    # Verbs

    def _help(self, words: list[str]) -> None:
        print(options.help_text())

    def _load(self, words: list[str]) -> None:
        found, names = options.read_words("load", words)
        if len(names) != 1:
            problem = "which model? " if not names else "one model at a time, quote a path: "
            raise InvalidRequest(f"{problem}%mtplx load NAME; %mtplx models lists the known ones")
        loading = {**({"mode": self.mode} if self.mode else {}), **found}
        print(f"Loading {names[0]} ...", flush=True)
        started = time.perf_counter()
        try:
            engine = self._engines.load(names[0], **loading)
        except KeyboardInterrupt:
            kept = self._engines.current
            state = f"{kept.name} is still loaded" if kept else "no model is loaded"
            raise GenerationInterrupted(f"Interrupted: {state}.") from None
        status = engine.status()
        print(f"Loaded {report.model_line(status)} in {time.perf_counter() - started:.1f} s.")
        print(report.running_on(status))

    def _models(self, words: list[str]) -> None:
        options.read_words("models", words, most=0)
        from mtplx_kernel.models.catalog import known_models

        engine = self._engines.current
        print(report.models_text(known_models(), engine.name if engine else None))

    def _mode(self, words: list[str]) -> None:
        _, values = options.read_words("mode", words, most=1)
        if values:
            options.check_sampling({"mode": values[0]})
        engine = self._engine()
        if values:
            engine.configure(mode=values[0])
        print(report.mode_line(engine.mode, engine.mode_reason))

    def _status(self, words: list[str]) -> None:
        options.read_words("status", words, most=0)
        engine = self._engines.current
        if engine is None:
            print(f"No model is loaded. Load one: %mtplx load {FIRST_MODEL}")
            return
        turns = len(self.conversation.turns) // 2
        print(report.status_text(engine.status(), engine.timeline.windows(), turns))

    def _verify(self, words: list[str]) -> VerifyReport:
        given, _ = options.read_words("verify", words, most=0)
        from mtplx_kernel.checks.verify import verify

        engine = self._engine()
        with _one_line_check("nothing was verified", options.VERIFY_OPTIONS):
            return verify(engine, **given)

    def _tune(self, words: list[str]) -> TuneReport | None:
        given, _ = options.read_words("tune", words, most=0)
        wishes = options.tune_wishes(given)
        from mtplx_kernel.checks.tune import forget, tune

        engine = self._engine()
        if wishes.pop("forget"):
            print(forget(engine))
            return None
        with _one_line_check("the depth in force is as before", options.TUNE_OPTIONS):
            return tune(engine, **wishes)

    def _reset(self, words: list[str]) -> None:
        options.read_words("reset", words, most=0)
        self.conversation = Conversation()
        print("The conversation is forgotten.")

    def _unload(self, words: list[str]) -> None:
        options.read_words("unload", words, most=0)
        engine = self._engines.current
        self._engines.unload()
        print(f"Unloaded {engine.name}." if engine else "No model is loaded.")

    # Prompts

    def _cell(self, line: str, cell: str, variables: Mapping[str, Any]) -> Generation | None:
        words = split_words(line)
        if options.asks_help(words):
            print(options.help_text())
            return None
        wanted = options.read_request(words, "%%mtplx")
        body = self._body(cell)
        hide = body.rstrip().endswith(";")
        return self._answer(body.rstrip()[:-1] if hide else body, wanted, variables, hide)

    def _body(self, cell: str) -> str:
        # IPython ends every cell with a line end that the user need not have typed; in a terminal
        # empty lines are how a user says that the cell is complete.
        return cell.removesuffix("\n") if has_front_end(self._shell) else cell.rstrip("\n")

    def _ask(self, rest: str, variables: Mapping[str, Any]) -> Generation | None:
        if rest.strip() in {"-h", "--help"}:
            print(options.help_text())
            return None
        line = rest.rstrip()
        words, prompt = split_prompt(line.removesuffix(";"), options.TAKES_VALUE)
        wanted = options.read_request(words, "%mtplx ask")
        return self._answer(prompt, wanted, variables, line.endswith(";"))

    def _answer(
        self,
        prompt: str,
        wanted: options.RequestOptions,
        variables: Mapping[str, Any],
        hide: bool,
    ) -> Generation:
        prompt = substitute(prompt, wanted.variables, {**self._user_ns, **variables})
        if not prompt.strip():
            raise InvalidRequest("the prompt is empty; write one after the options")
        engine = self._engine()
        messages = None
        if wanted.chat:
            messages = self.conversation.messages(prompt, wanted.system, self.system)
        generation = self._run(engine, prompt if messages is None else messages, wanted)
        if messages is not None and generation.finish_reason in FINISHED:
            self.conversation.keep(messages, generation.text)
        if hide or wanted.quiet:
            self._results.silence(generation)
        return generation

    def _run(
        self, engine: Engine, prompt: str | list[Message], wanted: options.RequestOptions
    ) -> Generation:
        sampling = {name: getattr(self, name) for name in SAMPLING_TRAITS} | wanted.sampling
        markdown = self.markdown if wanted.markdown is None else wanted.markdown
        sink = sink_for(self._shell, quiet=wanted.quiet, markdown=markdown, stream=self.stream)
        extra: dict[str, Any] = {"raw": True} if wanted.raw else {}
        if isinstance(prompt, str) and not wanted.raw:
            extra["system"] = (self.system if wanted.system is None else wanted.system) or None
        try:
            handle = engine.submit(prompt, **sampling, **extra)
        except KeyboardInterrupt:
            raise GenerationInterrupted("Interrupted before the first token.") from None
        except InvalidRequest as err:
            if wanted.chat and self.conversation.turns and "context" in str(err):
                raise InvalidRequest(f"{err}; %mtplx reset starts a new conversation") from err
            raise
        try:
            generation = wait(handle, sink)
        except KeyboardInterrupt:
            if not handle.done:
                busy = "Interrupted; the model is busy with one step and lets go after it."
                raise GenerationInterrupted(busy) from None
            self._bind(handle.result(), wanted.out)
            complete = f"Interrupted; the answer is complete in {RESULT_NAME}."
            raise GenerationInterrupted(complete) from None
        except Exception:
            self._bind(ended(handle), wanted.out)
            raise
        self._bind(generation, wanted.out)
        if generation.finish_reason is FinishReason.INTERRUPTED:
            n = generation.stats.completion_tokens
            tokens = "1 token" if n == 1 else f"{n} tokens"
            raise GenerationInterrupted(
                f"Interrupted after {tokens}; the partial answer is in {RESULT_NAME}."
            )
        return generation

    def _bind(self, generation: object, out: str | None) -> None:
        if generation is None:
            return
        self._shell.push({RESULT_NAME: generation}, interactive=False)
        if out is not None:
            self._shell.push({out: generation})

    def _engine(self) -> Engine:
        engine = self._engines.current
        if engine is None:
            raise EngineClosed(f"no model is loaded; load one: %mtplx load {FIRST_MODEL}")
        return engine

    @property
    def _shell(self) -> InteractiveShell:
        assert self.shell is not None
        return self.shell

    @property
    def _user_ns(self) -> dict[str, Any]:
        names: dict[str, Any] = self._shell.user_ns
        return names


def _checked(name: str, value: Any) -> Any:
    try:
        SamplingParams.of({name: value})
    except InvalidRequest as err:
        raise TraitError(str(err)) from err
    return value
