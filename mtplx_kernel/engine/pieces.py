"""The text of one request as an iterator that cancels the request when it is let go."""

from __future__ import annotations

from collections.abc import Iterator

from mtplx_kernel.engine.request import FinishReason, Handle


class TextPieces(Iterator[str]):
    """What `Engine.stream` returns: text as it comes, then whatever error ended the request.

    A generator would not do: one that is closed before its first piece never runs its clean-up.

    Parameters
    ----------
    handle
        The request.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._pieces = handle.pieces()
        self._over = False

    def __next__(self) -> str:
        if self._over:
            raise StopIteration
        try:
            return next(self._pieces)
        except StopIteration:
            self._over = True
            self._handle.result()
            raise
        except BaseException:  # an interrupt: the request must not run on for nobody
            self._over = True
            self._handle.cancel(FinishReason.INTERRUPTED)
            raise

    def close(self) -> None:
        """Stop reading and cancel the request, if it has not ended."""
        self._over = True
        self._handle.cancel()

    def __del__(self) -> None:
        self.close()
