"""Load and unload the IPython extension, and hold the engine that the magics use and serve."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from mtplx_kernel.errors import EngineClosed, InvalidRequest

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from mtplx_kernel.completion import MtplxCompletion
    from mtplx_kernel.display import QuietResults
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.magics import MtplxMagics
    from mtplx_kernel.server.thread import Endpoint

_ABSENT = object()


def _load_engine(name: str, **loading: Any) -> Engine:
    import mtplx_kernel

    engine: Engine = mtplx_kernel.load(name, progress=True, **loading)
    return engine


class EngineHolder:
    """Owns the engine of the magics: at most one, closed when it is replaced and at exit.

    It also owns the endpoint that serves this engine, and those that are loaded after it.

    Parameters
    ----------
    loader
        Called with a model's name and keyword options; returns a running engine.
    """

    def __init__(self, loader: Callable[..., Engine] = _load_engine) -> None:
        self._loader = loader
        self._engine: Engine | None = None
        self._endpoint: Endpoint | None = None
        self._served_with: dict[str, Any] = {}

    @property
    def current(self) -> Engine | None:
        """The loaded engine, or None; one that was closed does not count, one that died does."""
        engine = self._engine
        if engine is not None and engine.closed and engine.status()["state"] == "closed":
            self._engine = None
        return self._engine

    def load(self, name: str, **loading: Any) -> Engine:
        """Load a model, and only then close the engine before it, once its requests are done.

        Raises
        ------
        ModelNotFound, ModelUnusable
            If it cannot be loaded; the engine before it stays.
        """
        new = self._loader(name, **loading)
        old, self._engine = self._engine, new
        if old is not None:
            try:
                old.close(drain=True)
            except KeyboardInterrupt:
                old.close()
        return new

    def unload(self) -> None:
        """Close the engine, if there is one, let its memory go, and serve no more."""
        old, self._engine = self._engine, None
        try:
            # Streams end by themselves once their requests have.
            if old is not None:
                old.close()
        finally:
            self.stop()

    @property
    def endpoint(self) -> Endpoint | None:
        """What serves the engine, or None; one that was stopped does not count."""
        if self._endpoint is not None and not self._endpoint.running:
            self._endpoint = None
        return self._endpoint

    def serve(self, **wishes: Any) -> Endpoint:
        """Serve the engine that is loaded, and those to come, until `stop`.

        Parameters
        ----------
        **wishes
            As `mtplx_kernel.server.thread.serve` takes them. The same ones again change nothing.

        Raises
        ------
        InvalidRequest
            If a wish cannot be met, or other ones are in force.
        """
        running = self.endpoint
        if running is not None:
            if wishes == self._served_with:
                return running
            raise InvalidRequest(
                f"already serving at {running.url}, with other options; %mtplx stop ends that"
            )
        from mtplx_kernel.server.thread import serve

        self._endpoint = serve(self._loaded, **wishes)
        self._served_with = wishes
        return self._endpoint

    def stop(self) -> Endpoint | None:
        """End the endpoint; what was ended, or None where nothing was served.

        Open streams have some seconds to end by themselves; an interrupt cuts them off.
        """
        ended, self._endpoint = self.endpoint, None
        if ended is not None:
            try:
                ended.stop()
            except KeyboardInterrupt:
                ended.stop(0)
        return ended

    def _loaded(self) -> Engine:
        engine = self.current
        if engine is None:
            raise EngineClosed("no model is loaded")
        return engine


@dataclass(slots=True)
class Installation:
    """What was put into one shell, and what was there before."""

    magics: MtplxMagics
    completion: MtplxCompletion
    results: QuietResults
    magics_before: dict[str, object] = field(default_factory=dict)
    registry_before: object = _ABSENT
    name_before: object = _ABSENT


_engines = EngineHolder()
_installations: WeakKeyDictionary[InteractiveShell, Installation] = WeakKeyDictionary()


def current() -> Engine | None:
    """The engine that ``%mtplx load`` loaded, or None."""
    return _engines.current


def current_endpoint() -> Endpoint | None:
    """The endpoint that ``%mtplx serve`` opened, or None; its `token` is what clients send."""
    return _engines.endpoint


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Install the magics, their completion and their options; a second call changes nothing."""
    if shell in _installations:
        return
    _installations[shell] = install(shell, _engines)
    atexit.register(_engines.unload)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Put the shell back as it was; close engine and endpoint when no other shell uses them."""
    installation = _installations.pop(shell, None)
    if installation is None:
        return
    remove(shell, installation)
    if not _installations:
        _engines.unload()
        atexit.unregister(_engines.unload)


def install(shell: InteractiveShell, engines: EngineHolder) -> Installation:
    """Put everything into a shell, remembering what was there."""
    from mtplx_kernel.completion import MtplxCompletion
    from mtplx_kernel.display import QuietResults
    from mtplx_kernel.magics import MtplxMagics
    from mtplx_kernel.prompt_magics import RESULT_NAME
    from mtplx_kernel.verbatim import keep_prompts

    results = QuietResults(shell.display_trap.hook)
    completion = MtplxCompletion()
    magics = MtplxMagics(shell, engines, results)
    installation = Installation(magics, completion, results)
    tables, registry = shell.magics_manager.magics, shell.magics_manager.registry
    for kind in ("line", "cell"):
        installation.magics_before[kind] = tables[kind].get("mtplx", _ABSENT)
    # The registry imports what it does not have; only what it holds already is asked for.
    if MtplxMagics.__name__ in registry:
        installation.registry_before = registry[MtplxMagics.__name__]
    installation.name_before = shell.user_ns.get(RESULT_NAME, _ABSENT)

    shell.register_magics(magics)
    _replace_hook(shell, results.hook, results)
    shell.events.register("post_execute", results.forget)
    shell.input_transformers_cleanup.insert(0, keep_prompts)
    shell.Completer.custom_matchers.append(installation.completion.matcher)
    return installation


def remove(shell: InteractiveShell, installation: Installation) -> None:
    """Take out what `install` put in, unless somebody has replaced it since."""
    from mtplx_kernel.prompt_magics import RESULT_NAME
    from mtplx_kernel.verbatim import keep_prompts

    magics, results = installation.magics, installation.results
    magics.views.close()
    tables, registry = shell.magics_manager.magics, shell.magics_manager.registry
    for kind, before in installation.magics_before.items():
        if tables[kind].get("mtplx") is magics.magics[kind]["mtplx"]:
            _restore(tables[kind], "mtplx", before)
    if registry.get(type(magics).__name__) is magics:
        _restore(registry, type(magics).__name__, installation.registry_before)
    configurables = cast(list[object], shell.configurables)
    configurables[:] = [c for c in configurables if c is not magics]
    _replace_hook(shell, results, results.hook)
    shell.events.unregister("post_execute", results.forget)
    transformers, matchers = shell.input_transformers_cleanup, shell.Completer.custom_matchers
    transformers[:] = [t for t in transformers if t is not keep_prompts]
    matchers[:] = [m for m in matchers if m is not installation.completion.matcher]
    _restore(shell.user_ns, RESULT_NAME, installation.name_before)
    shell.user_ns_hidden.pop(RESULT_NAME, None)


def _replace_hook(shell: InteractiveShell, old: object, new: object) -> None:
    if shell.display_trap.hook is old:
        shell.display_trap.hook = new
    # In a running cell the shell's hook is already Python's.
    if sys.displayhook is old:
        sys.displayhook = cast(Any, new)


def _restore(table: dict[str, Any], name: str, before: object) -> None:
    if before is _ABSENT:
        table.pop(name, None)
    else:
        table[name] = before
