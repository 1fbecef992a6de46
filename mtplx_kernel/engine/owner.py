"""The owner thread: the only thread that touches MLX. It lives until it is told to stop.

Other threads reach it through a mailbox of small jobs. It never prints and never raises out of its
loop; if the loop itself breaks, every waiting caller is told and the state says `dead`.
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from mtplx_kernel.engine.request import FinishReason
from mtplx_kernel.engine.runner import Runner
from mtplx_kernel.models.load import LoadedModel, load
from mtplx_kernel.scheduling.policy import Policy

Mail = Callable[[Runner], None]


class Owner:
    """A thread with a model.

    Parameters
    ----------
    folder, name
        The model to load, on the thread.
    policy
        The scheduler to start with.
    on_death
        Called once, on the thread, if its loop breaks.

    Attributes
    ----------
    loaded, runner
        The model and what runs it, once `wait_until_loaded` has returned.
    """

    def __init__(
        self, folder: Path, name: str, policy: Policy, on_death: Callable[[str], None]
    ) -> None:
        self.loaded: LoadedModel | None = None
        self.runner: Runner | None = None
        self._folder, self._name = folder, name
        self._policy = policy
        self._on_death = on_death
        self._mail: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._stopping = False
        self._load_error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mtplx-owner-{name}", daemon=True)
        self._thread.start()

    def wait_until_loaded(self) -> LoadedModel:
        """Wait for the model; an interrupt abandons the load.

        Raises
        ------
        ModelUnusable
            If it cannot be loaded.
        """
        try:
            self._ready.wait()
        except BaseException:
            self.post(self._stop)
            raise
        if self._load_error is not None:
            self._thread.join()
            raise self._load_error
        assert self.loaded is not None
        return self.loaded

    def post(self, mail: Mail) -> None:
        """Have `mail` run on the thread, between two quanta."""
        self._mail.put(mail)

    def stop(self) -> None:
        """End the open requests, let the model go and wait for the thread; may be called twice."""
        self.post(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.loaded = load(self._folder, self._name)
            self.runner = Runner(self.loaded, self._policy)
        except BaseException as error:  # handed to the thread that waits for the load
            self._load_error = error
            self._ready.set()
            return
        self._ready.set()
        try:
            self._loop(self.runner)
            self.runner.end_all(FinishReason.CANCELLED)
        except BaseException as error:  # a fault of ours: no caller may be left waiting
            self._on_death(f"the engine's owner thread died: {type(error).__name__}: {error}")
        finally:
            self._release()

    def _loop(self, runner: Runner) -> None:
        idle = True
        while not self._stopping:
            self._read_mail(runner, wait=idle)
            idle = self._stopping or not runner.run_next()

    def _read_mail(self, runner: Runner, wait: bool) -> None:
        try:
            self._mail.get(block=wait)(runner)
            while True:
                self._mail.get_nowait()(runner)
        except queue.Empty:
            return

    def _stop(self, _: Runner) -> None:
        self._stopping = True

    def _release(self) -> None:
        """Let the model go on the thread that owns its arrays."""
        import mlx.core as mx

        self.loaded = self.runner = None
        gc.collect()
        mx.clear_cache()
        mx.clear_streams()
