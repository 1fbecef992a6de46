"""``mtplx-kernel serve``: a model behind an endpoint, until a signal ends it."""

from __future__ import annotations

import queue
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from mtplx_kernel import launch, serve_options
from mtplx_kernel.errors import EngineClosed, ModelLoading, MTPLXError

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine
    from mtplx_kernel.server.thread import Endpoint

SERVE_OPTIONS = (*launch.LAUNCH_OPTIONS, *serve_options.SERVE_OPTIONS)

STOPPING = (signal.SIGINT, signal.SIGTERM)
WATCH_S = 0.5
"""How often it is looked whether there is still something that serves, in seconds."""

Signals = queue.SimpleQueue[int]


def serve(words: list[str], given: dict[str, Any]) -> int:
    """Serve a model until SIGINT or SIGTERM comes; then finish what runs.

    The URL goes to stdout once the model is loaded, all else to stderr. A second signal ends what
    still runs.

    Returns
    -------
    int
        0, when all that ran was finished.
    """
    name, loading = launch.chosen(words, given)
    wishes = serve_options.serve_settings(given)
    import mtplx_kernel
    from mtplx_kernel.server.thread import serve as open_endpoint

    loaded: list[Engine] = []

    def engine() -> Engine:
        if not loaded:
            raise ModelLoading(f"{name} is being loaded")
        return loaded[0]

    # A port that is in use is found out before the model is loaded, which may take long.
    with serve_options.said_plainly():
        opened = open_endpoint(engine, **wishes)
    with opened as endpoint:
        _say(f"Loading {name} ...")
        with mtplx_kernel.load(name, **loading) as running, _signals() as signals:
            loaded.append(running)
            if endpoint.token and "token" not in wishes:
                _say(f"Token: {endpoint.token}")
            print(f"Serving {running.name} at {endpoint.url}", flush=True)
            wait_for_signal(signals, running, endpoint)
            _say("Finishing what runs; a second signal ends it.")
            try:
                running.close(drain=True)
            except KeyboardInterrupt:
                endpoint.stop(0)
                raise
    return 0


def wait_for_signal(signals: Signals, engine: Engine, endpoint: Endpoint) -> None:
    """Return when a signal came.

    Raises
    ------
    MTPLXError
        If the engine or the endpoint ended by itself: nothing is served any more.
    """
    while True:
        try:
            signals.get(timeout=WATCH_S)
        except queue.Empty:
            if engine.closed:
                raise EngineClosed(str(engine.status()["reason"])) from None
            if not endpoint.running:
                raise MTPLXError("the endpoint has ended by itself; start it again") from None
        else:
            return


@contextmanager
def _signals() -> Iterator[Signals]:
    """Collect the first signal that asks to stop; each further one is an interrupt."""
    # Putting into this queue is safe wherever a signal strikes, also inside its own get.
    came: Signals = queue.SimpleQueue()
    numbers: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        if len(numbers) > 1:
            raise KeyboardInterrupt("what still ran was ended")
        came.put(number)

    before = {number: signal.signal(number, on_signal) for number in STOPPING}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
