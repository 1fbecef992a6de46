"""The requests that one call has opened, cancelled where the call is left by an exception."""

from __future__ import annotations

from mtplx_kernel.engine.request import FinishReason, Handle


class Opened(list[Handle]):
    """A list of handles and the context of the call that fills it.

    A request is put here before it can run, so that an interrupt finds it, even one that comes
    before its caller holds the handle. Requests that have ended are left as they are.

    Parameters
    ----------
    reason
        What the requests end with when an exception leaves the context.
    """

    def __init__(self, reason: FinishReason = FinishReason.INTERRUPTED) -> None:
        super().__init__()
        self._reason = reason

    def cancel(self, reason: FinishReason) -> None:
        """Cancel all."""
        for handle in self:
            handle.cancel(reason)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.cancel(self._reason)
