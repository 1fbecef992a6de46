"""What ``%%mtplx`` and ``%mtplx ask`` do with prompts: defaults, sending, showing, keeping."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics
from traitlets import Bool, Float, Int, TraitError, Unicode, validate

from mtplx_kernel import options
from mtplx_kernel.batch import (
    COMPLETE,
    BatchResult,
    check_prompts,
    split_prompts,
    substitute_each,
    title,
)
from mtplx_kernel.boards import board_for
from mtplx_kernel.conversation import Conversation, Message, substitute
from mtplx_kernel.decoding.params import MAX_SEED, SamplingParams
from mtplx_kernel.display import QuietResults, has_front_end, show_trace, sink_for
from mtplx_kernel.engine.request import FinishReason, Generation
from mtplx_kernel.errors import EngineClosed, InvalidRequest, MTPLXError
from mtplx_kernel.grammar import named_as_options
from mtplx_kernel.together import Part, Together
from mtplx_kernel.waiting import ended, wait
from mtplx_kernel.words import split_prompt, split_words

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.extension import EngineHolder

RESULT_NAME = "_mtplx"
SMALL_SEEDS = 10**6
"""Seeds that are drawn for samples are shown with their prompts, so they are short."""
TOO_SOON = "Interrupted before the first token."
BUSY = "Interrupted; the model is busy with one step and lets go after it."

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


class PromptMagics(Magics):
    """The part of the magics that answers prompts; its traits are the defaults.

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

    # Prompts

    def _cell(
        self, line: str, cell: str, variables: Mapping[str, Any]
    ) -> Generation | BatchResult | None:
        words = split_words(line)
        if options.asks_help(words):
            print(options.help_text())
            return None
        wanted = options.read_request(words, "%%mtplx")
        body = self._body(cell)
        hide = body.rstrip().endswith(";")
        prompt = body.rstrip()[:-1] if hide else body
        if wanted.batch:
            return self._answer_each(split_prompts(prompt), wanted, variables, hide)
        return self._answer(prompt, wanted, variables, hide)

    def _body(self, cell: str) -> str:
        # IPython ends every cell with a line end that the user need not have typed; in a terminal
        # empty lines are how a user says that the cell is complete.
        return cell.removesuffix("\n") if has_front_end(self._shell) else cell.rstrip("\n")

    def _ask(self, rest: str, variables: Mapping[str, Any]) -> Generation | BatchResult | None:
        if rest.strip() in {"-h", "--help"}:
            print(options.help_text())
            return None
        line = rest.rstrip()
        words, prompt = split_prompt(line.removesuffix(";"), options.TAKES_VALUE)
        wanted = options.read_request(words, "%mtplx ask")
        if wanted.batch:
            raise InvalidRequest("--batch takes a %%mtplx cell; %mtplx ask has one prompt")
        return self._answer(prompt, wanted, variables, line.endswith(";"))

    def _answer(
        self,
        prompt: str,
        wanted: options.RequestOptions,
        variables: Mapping[str, Any],
        hide: bool,
    ) -> Generation | BatchResult:
        if wanted.samples is not None:
            return self._answer_each([prompt], wanted, variables, hide)
        prompt = substitute(prompt, wanted.variables, {**self._user_ns, **variables})
        if not prompt.strip():
            raise InvalidRequest("the prompt is empty; write one after the options")
        engine = self._engine()
        messages = None
        if wanted.chat:
            messages = self.conversation.messages(prompt, wanted.system, self.system)
        generation = self._run(engine, prompt if messages is None else messages, wanted)
        if messages is not None and generation.finish_reason in COMPLETE:
            self.conversation.keep(messages, generation.text)
        if hide or wanted.quiet:
            self._results.silence(generation)
        return generation

    def _run(
        self, engine: Engine, prompt: str | list[Message], wanted: options.RequestOptions
    ) -> Generation:
        sink = sink_for(
            self._shell,
            quiet=wanted.quiet,
            markdown=self._wants_markdown(wanted),
            stream=self.stream,
            trace=wanted.trace,
        )
        try:
            with named_as_options((options.PRIORITY,)):
                asked = self._asked(wanted, with_system=isinstance(prompt, str))
                handle = engine.submit(prompt, **asked)
        except KeyboardInterrupt:
            raise GenerationInterrupted(TOO_SOON) from None
        except InvalidRequest as err:
            if wanted.chat and self.conversation.turns and "context" in str(err):
                raise InvalidRequest(f"{err}; %mtplx reset starts a new conversation") from err
            raise
        try:
            generation = wait(handle, sink)
        except KeyboardInterrupt:
            if not handle.done:
                raise GenerationInterrupted(BUSY) from None
            self._bind(handle.result(), wanted.out)
            complete = f"Interrupted; the answer is complete in {RESULT_NAME}."
            raise GenerationInterrupted(complete) from None
        except Exception:
            self._bind(ended(handle), wanted.out)
            raise
        self._bind(generation, wanted.out)
        if wanted.trace:
            show_trace(engine, generation, sink)
        if generation.finish_reason is FinishReason.INTERRUPTED:
            n = generation.stats.completion_tokens
            tokens = "1 token" if n == 1 else f"{n} tokens"
            raise GenerationInterrupted(
                f"Interrupted after {tokens}; the partial answer is in {RESULT_NAME}."
            )
        return generation

    def _asked(self, wanted: options.RequestOptions, *, with_system: bool) -> dict[str, Any]:
        """The options of a request as the engine takes them, the defaults among them."""
        asked = {name: getattr(self, name) for name in SAMPLING_TRAITS} | wanted.sampling
        if wanted.priority is not None:
            asked["priority"] = wanted.priority
        if wanted.raw:
            asked["raw"] = True
        elif with_system:
            asked["system"] = (self.system if wanted.system is None else wanted.system) or None
        return asked

    def _wants_markdown(self, wanted: options.RequestOptions) -> bool:
        return self.markdown if wanted.markdown is None else wanted.markdown

    # Several answers

    def _answer_each(
        self,
        prompts: Sequence[str],
        wanted: options.RequestOptions,
        variables: Mapping[str, Any],
        hide: bool,
    ) -> BatchResult:
        found = substitute_each(prompts, wanted.variables, {**self._user_ns, **variables})
        check_prompts(found)
        asked = self._asked(wanted, with_system=True)
        seeds = _seeds(asked, wanted.samples)
        engine = self._engine()
        parts = [
            Part(
                title(prompt) if seed is None else f"{title(prompt)} [seed {seed}]",
                partial(engine.submit, prompt, **asked, **({} if seed is None else {"seed": seed})),
            )
            for prompt in found
            for seed in seeds
        ]
        result = self._run_each(parts, wanted)
        if hide or wanted.quiet:
            self._results.silence(result)
        return result

    def _run_each(self, parts: Sequence[Part], wanted: options.RequestOptions) -> BatchResult:
        markdown = self._wants_markdown(wanted)
        board = board_for(self._shell, quiet=wanted.quiet, markdown=markdown, stream=self.stream)
        batch = Together(parts)

        def kept() -> BatchResult:
            result = BatchResult([part.title for part in parts], batch.outcomes())
            self._bind(result, wanted.out)
            return result

        try:
            batch.run(board.update)
        except KeyboardInterrupt:
            kept()
            raise GenerationInterrupted(BUSY) from None
        except Exception:
            kept()
            raise
        if not any(part.handle for part in parts):
            if batch.interrupted:
                raise GenerationInterrupted(TOO_SOON)
            # Nothing ran: what refused the first refused all.
            with named_as_options((options.PRIORITY,)):
                raise batch.outcomes()[0]  # type: ignore[misc]
        result = kept()
        board.close(result)
        if batch.interrupted:
            raise GenerationInterrupted(
                f"Interrupted: {result.complete} of {len(result)} answers are complete; "
                f"they and what there is of the others are in {RESULT_NAME}."
            )
        return result

    def _bind(self, generation: object, out: str | None) -> None:
        if generation is None:
            return
        self._shell.push({RESULT_NAME: generation}, interactive=False)
        if out is not None:
            self._shell.push({out: generation})

    def _engine(self) -> Engine:
        engine = self._engines.current
        if engine is None:
            command = f"%mtplx load {options.FIRST_MODEL}"
            raise EngineClosed(f"no model is loaded; load one: {command}")
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


def _seeds(asked: dict[str, Any], samples: int | None) -> list[int | None]:
    """Takes the seed out of a request's options: the seeds of its samples; None leaves it there.

    Raises
    ------
    InvalidRequest
        If the samples would be all the same, or the seeds would run out.
    """
    if samples is None:
        return [None]
    if asked["temperature"] == 0:
        raise InvalidRequest(
            f"--samples {samples} needs a --temperature above 0: greedy answers are all the same"
        )
    last = MAX_SEED - samples + 1
    first = asked.pop("seed", None)
    if first is None:
        first = secrets.randbelow(SMALL_SEEDS)
    if first > last:
        raise InvalidRequest(f"--seed must be at most {last} with --samples {samples}, not {first}")
    return [first + n for n in range(samples)]
