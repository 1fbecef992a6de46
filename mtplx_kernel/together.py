"""Run the requests of one cell side by side in the foreground; an interrupt ends them all."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtplx_kernel.batch import Outcome
from mtplx_kernel.engine.request import FinishReason, Handle
from mtplx_kernel.engine.slices import SLICE_S
from mtplx_kernel.errors import MTPLXError, QueueFull, RequestFailed
from mtplx_kernel.waiting import interrupt_calls


@dataclass(slots=True)
class Part:
    """One request of a cell.

    Attributes
    ----------
    title
        Its name for people.
    submit
        Queues it.
    handle
        Once it is queued.
    outcome
        Once it has ended, or was refused.
    """

    title: str
    submit: Callable[[], Handle]
    handle: Handle | None = None
    outcome: Outcome | None = None


class Together:
    """Some requests, submitted as the queue has room.

    Parameters
    ----------
    parts
        What to run; filled in as it runs.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.interrupted = False
        self._ended: queue.SimpleQueue[Handle] = queue.SimpleQueue()

    def run(self, show: Callable[[Sequence[Part]], None]) -> None:
        """Run all to their ends.

        A keyboard interrupt ends them, with what they have; a second one does not wait for that.
        Where they cannot be shown, they are cancelled and have ended when that error is raised.

        Parameters
        ----------
        show
            Called some twenty times a second, and when parts end.
        """
        # Only a note: the handler may run while a request is queued.
        with interrupt_calls(self._note_interrupt):
            try:
                while any(part.outcome is None for part in self.parts):
                    if self.interrupted:
                        self._cancel(FinishReason.INTERRUPTED)
                    self._submit()
                    self._collect()
                    if self._handles():
                        show(self.parts)
            except Exception:
                self._cancel(FinishReason.CANCELLED)
                for handle in self._handles():
                    handle.wait()
                raise
            except BaseException:
                self._cancel(FinishReason.INTERRUPTED)
                raise

    def outcomes(self) -> list[Outcome]:
        """What there is of each part, in order."""
        return [_outcome(part) for part in self.parts]

    def _submit(self) -> None:
        for part in self.parts:
            if part.handle is not None or part.outcome is not None:
                continue
            if self.interrupted:
                part.outcome = RequestFailed("not run: the cell was interrupted")
                continue
            try:
                part.handle = part.submit()
            except QueueFull as error:
                if self._under_way():
                    return
                part.outcome = error
            except MTPLXError as error:
                part.outcome = error
            else:
                part.handle.when_done(self._ended.put)

    def _collect(self) -> None:
        """Wait a little for an end, and take all that have come."""
        if not self._under_way():
            return
        try:
            self._ended.get(timeout=SLICE_S)
        except queue.Empty:
            return
        for part in self.parts:
            if part.outcome is None and part.handle is not None and part.handle.done:
                part.outcome = _outcome(part)

    def _under_way(self) -> bool:
        return any(part.handle is not None and part.outcome is None for part in self.parts)

    def _handles(self) -> list[Handle]:
        return [part.handle for part in self.parts if part.handle is not None]

    def _cancel(self, reason: FinishReason) -> None:
        for handle in self._handles():
            handle.cancel(reason)

    def _note_interrupt(self) -> bool:
        first, self.interrupted = not self.interrupted, True
        return first


def _outcome(part: Part) -> Outcome:
    if part.outcome is not None:
        return part.outcome
    if part.handle is None or not part.handle.done:
        return RequestFailed("not ended: the cell was left before")
    try:
        return part.handle.result()
    except MTPLXError as error:
        return error
