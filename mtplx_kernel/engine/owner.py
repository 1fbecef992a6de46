"""The owner thread: the only thread that touches MLX. It lives until it is told to stop.

Other threads reach it through a mailbox of small jobs. It never prints and never raises out of its
loop; if the loop itself breaks, every waiting caller is told and the state says `dead`.
"""

from __future__ import annotations

import atexit
import gc
import math
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from mtplx_kernel.engine.fit import Fit
from mtplx_kernel.engine.memory import Memory
from mtplx_kernel.engine.request import FinishReason, cause
from mtplx_kernel.engine.runner import Runner
from mtplx_kernel.engine.slices import SLICE_S, join
from mtplx_kernel.errors import EngineClosed, InvalidRequest, ModelUnusable, MTPLXError
from mtplx_kernel.models.catalog import ModelSource
from mtplx_kernel.models.head import shipped_name
from mtplx_kernel.models.load import LoadedModel, ModelFacts, load
from mtplx_kernel.models.progress import Telling

Mail = Callable[[Runner], None]
Answer = TypeVar("Answer")


class Owner:
    """A thread with a model.

    Parameters
    ----------
    source, head
        The model to load on the thread, and its head as `mtplx_kernel.models.load.load` takes it.
    make_runner
        Builds what runs the loaded model, on the thread; `stages` is told of what it measures.
    on_death
        Called once, on the thread, if its loop breaks.
    progress
        Whether those who wait for something long draw how far it is.

    Attributes
    ----------
    loaded, runner
        The model and what runs it, once `load` has returned.
    """

    def __init__(
        self,
        source: ModelSource,
        head: str,
        make_runner: Callable[..., Runner],
        on_death: Callable[[str], None],
        progress: bool = False,
    ) -> None:
        self.loaded: LoadedModel | None = None
        self.runner: Runner | None = None
        self._name = source.name
        self._model = (source.path, source.name, head, shipped_name(source))
        self._build = make_runner
        self._on_death = on_death
        self._telling, self._progress = Telling(), progress
        self._mail: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._draining = self._stopping = False
        self._load_error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"mtplx-owner-{self._name}", daemon=True
        )

    def load(self) -> tuple[ModelFacts, Any, Fit, Memory]:
        """Start the thread and wait for the model; an interrupt abandons the load.

        Returns
        -------
        tuple
            What other threads may have of it, which is plain data: the facts, the tokenizer, how it
            fits this machine, and what memory its requests take.

        Raises
        ------
        ModelUnusable
            If it cannot be loaded.
        """
        try:
            # The interpreter must not end under a thread that is inside MLX.
            atexit.register(self.stop)
            self._thread.start()
            with self._telling.drawn(self._progress) as draw:
                while not self._ready.wait(SLICE_S):
                    draw()
        except BaseException:
            self.request_stop()
            raise
        if self._load_error is not None:
            self._thread.join()
            raise self._load_error
        assert self.loaded is not None
        assert self.runner is not None
        runner = self.runner
        return self.loaded.facts, self.loaded.tokenizer, runner.fit, runner.memory

    def post(self, mail: Mail) -> None:
        """Have `mail` run on the thread, between two quanta."""
        self._mail.put(mail)

    def ask(self, question: Callable[[Runner], Answer], *, long: bool = False) -> Answer:
        """Have a question answered on the thread, between two quanta, and wait for it.

        Parameters
        ----------
        question
            What is asked.
        long
            Whether something may have to be measured for it, which is drawn then.

        Raises
        ------
        EngineClosed
            If the thread ended first. What the question raises is raised here.
        """
        self.refuse_waiting()
        answer: Future[Answer] = Future()

        def mail(runner: Runner) -> None:
            try:
                answer.set_result(question(runner))
            except Exception as error:  # the asker's, whatever it is
                answer.set_exception(error)

        self.post(mail)
        with self._telling.drawn(long and self._progress) as draw:
            while True:
                try:
                    return answer.result(SLICE_S)
                except FutureTimeout:
                    draw()
                    if not self._thread.is_alive() and not answer.done():
                        raise EngineClosed("the engine ended before it could answer") from None

    def request_stop(self) -> None:
        """Have the thread end the open requests and let the model go."""
        self.post(self._stop)

    def stop(self, *, drain: bool = False) -> None:
        """Stop and wait for the thread, unless called on it; may be called twice.

        Parameters
        ----------
        drain
            Let the open requests finish first.
        """
        self.post(self._drain if drain else self._stop)
        if not self._current:
            join(self._thread)

    def refuse_waiting(self) -> None:
        """Raise InvalidRequest on the thread itself: it would wait for its own work."""
        if self._current:
            raise InvalidRequest(
                "an on_token callback cannot wait for a request, as the model waits for the "
                "callback: use submit, and wait for its result elsewhere"
            )

    @property
    def _current(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            self.runner = self._make_runner()
        except BaseException as error:  # handed to the thread that waits for the load
            self._load_error = error
            _let_go_of_locals(error)
        else:
            self._ready.set()
            self._serve(self.runner)
        finally:
            try:
                self._release()
            finally:
                atexit.unregister(self.stop)
                self._ready.set()

    def _make_runner(self) -> Runner:
        try:
            loaded = load(*self._model, stages=self._telling.stage)
            runner = self._build(loaded, stages=self._telling.stage)
            self.loaded = runner.loaded
            runner.between = lambda: self._between(runner)
            return runner
        except MTPLXError:
            raise
        except Exception as error:  # a model that loads may still fail in its first forwards
            raise ModelUnusable(
                f"{self._name} cannot be run here: {cause(error)[:300]}; try another model"
            ) from error

    def _serve(self, runner: Runner) -> None:
        try:
            self._loop(runner)
            runner.end_all(FinishReason.CANCELLED)
        except BaseException as error:  # a fault of ours: no caller may be left waiting
            self._on_death(f"the engine's owner thread died: {cause(error)}")
            _let_go_of_locals(error)

    def _loop(self, runner: Runner) -> None:
        pause = math.inf
        while not self._stopping:
            self._read_mail(runner, pause)
            if self._draining and not len(runner.jobs):
                return
            pause = 0.0 if self._stopping else runner.run_next()

    def _read_mail(self, runner: Runner, pause: float) -> None:
        """Run what was posted; wait for the first so many seconds."""
        try:
            self._mail.get(pause > 0, None if math.isinf(pause) else pause)(runner)
            while True:
                self._mail.get_nowait()(runner)
        except queue.Empty:
            return

    def _between(self, runner: Runner) -> bool:
        """Read the mail while one request has the model to itself; whether it may go on."""
        self._read_mail(runner, 0.0)
        return not self._stopping

    def _stop(self, _: Runner) -> None:
        self._stopping = True

    def _drain(self, _: Runner) -> None:
        self._draining = True

    def _release(self) -> None:
        """Let the model go on the thread that owns its arrays."""
        import mlx.core as mx

        runner, self.loaded, self.runner = self.runner, None, None
        if runner is not None:
            runner.let_go()
        gc.collect()
        mx.clear_cache()
        mx.clear_streams()


def _let_go_of_locals(error: BaseException) -> None:
    """Free what the failed frames held, such as weights: someone may keep the error for long."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
