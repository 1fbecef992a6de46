"""``%mtplx`` and ``%%mtplx``: parse, call the engine, show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)

from mtplx_kernel import grammar, options, report
from mtplx_kernel.conversation import Conversation
from mtplx_kernel.errors import InvalidRequest, MTPLXError
from mtplx_kernel.prompt_magics import GenerationInterrupted
from mtplx_kernel.scheduling.options import SchedulerOptions, check_mode
from mtplx_kernel.show_magics import ShowMagics
from mtplx_kernel.words import split_words

if TYPE_CHECKING:
    from mtplx_kernel.checks.bench_report import BenchReport
    from mtplx_kernel.checks.tune_report import TuneReport
    from mtplx_kernel.checks.verify_report import VerifyReport


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
class MtplxMagics(ShowMagics):
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
                "scheduler": self._scheduler,
                "status": self._status,
                "verify": self._verify,
                "tune": self._tune,
                "bench": self._bench,
                "show": self._show,
                "serve": self._serve,
                "stop": self._stop,
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
        found = options.scheduler_settings(found)
        loading = {**({"mode": self.mode} if self.mode else {}), **found}
        print(f"Loading {names[0]} ...", flush=True)
        started = time.perf_counter()
        try:
            with grammar.named_as_options(options.LOAD_OPTIONS):
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

    def _scheduler(self, words: list[str]) -> None:
        given, names = options.read_words("scheduler", words, most=1)
        settings = options.scheduler_settings(given)
        engine = self._engine()
        if names and check_mode(names[0]) != engine.scheduler:
            with grammar.named_as_options(options.SCHEDULER_OPTIONS):
                SchedulerOptions.of(names[0], settings)
            # The first batches on a machine are measured, which takes its time.
            print(f"Switching to {names[0]} ...", flush=True)
        if names or settings:
            state = "%mtplx scheduler shows what is in force"
            with _one_line_check(state, options.SCHEDULER_OPTIONS):
                engine.configure(scheduler=names[0] if names else None, **settings)
        print(report.scheduler_text(engine.status()))

    def _status(self, words: list[str]) -> None:
        options.read_words("status", words, most=0)
        engine, endpoint = self._engines.current, self._engines.endpoint
        served = report.endpoint_line(endpoint.url, bool(endpoint.token)) if endpoint else None
        if engine is None:
            print(f"No model is loaded. Load one: %mtplx load {options.FIRST_MODEL}")
            if served:
                print(report.labelled([("Endpoint", served)]))
            return
        turns = len(self.conversation.turns) // 2
        print(report.status_text(engine.status(), engine.timeline.windows(), turns, served))

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

    def _bench(self, words: list[str]) -> BenchReport:
        given, _ = options.read_words("bench", words, most=0)
        wishes = options.scheduler_settings(given)
        from mtplx_kernel.checks.bench import bench

        engine = self._engine()
        with _one_line_check("the scheduler is as before", options.BENCH_OPTIONS):
            return bench(engine, **wishes)

    def _reset(self, words: list[str]) -> None:
        options.read_words("reset", words, most=0)
        self.conversation = Conversation()
        print("The conversation is forgotten.")

    def _unload(self, words: list[str]) -> None:
        options.read_words("unload", words, most=0)
        engine, endpoint = self._engines.current, self._engines.endpoint
        self._engines.unload()
        print(f"Unloaded {engine.name}." if engine else "No model is loaded.")
        if endpoint is not None:
            print(f"Stopped serving at {endpoint.url}.")
