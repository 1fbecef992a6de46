"""Every error a user can meet: one line that says what is wrong, what is allowed and what to do."""

from __future__ import annotations


class MTPLXError(Exception):
    """Base of all errors raised by this package."""


class InvalidRequest(MTPLXError, ValueError):
    """An option or a prompt was refused before any work started."""


class ModelNotFound(MTPLXError, LookupError):
    """No catalog entry, local folder or reachable hub repository has this name."""


class ModelUnusable(MTPLXError):
    """The model was found, but it is damaged or of a kind that cannot be loaded."""


class BackendMissing(MTPLXError, ImportError):
    """MLX itself cannot be imported, most often because it was installed without a backend."""


class QueueFull(MTPLXError):
    """The engine's bounded queue holds as many requests as it may."""


class EngineClosed(MTPLXError):
    """The engine was closed, or its owner thread died; the message says which."""


class RequestTimeout(MTPLXError, TimeoutError):
    """A result did not arrive in the time the caller was willing to wait."""


class RequestFailed(MTPLXError):
    """One request ended with an error; the engine goes on.

    Attributes
    ----------
    generation
        What the request had produced (a `mtplx_kernel.engine.request.Generation`), or None.
    """

    def __init__(self, message: str, generation: object | None = None) -> None:
        super().__init__(message)
        self.generation = generation
