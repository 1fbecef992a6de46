"""Every error a user can meet: one line that says what is wrong, what is allowed and what to do."""

from __future__ import annotations


class MTPLXError(Exception):
    """Base of all errors raised by this package."""


class InvalidRequest(MTPLXError, ValueError):
    """An option or a prompt was refused before any work started."""


class PromptTooLong(InvalidRequest):
    """A prompt leaves no room in the model's context."""


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


class ModelLoading(EngineClosed):
    """There is no engine yet: its model is being loaded."""


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


class EndpointError(MTPLXError):
    """An endpoint refused a request, or failed at it.

    Attributes
    ----------
    status
        The HTTP status; None where the error came inside a stream.
    type, param, code
        As the endpoint's error object has them, or None.
    retry_after_s
        How long to wait before another try, where the endpoint said so, in seconds.
    completion
        What had arrived of the answer (a `mtplx_kernel.client.Completion`), or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        type: str | None = None,  # noqa: A002  # OpenAI's name for it
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        completion: object | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.completion = completion


class EndpointLost(MTPLXError, ConnectionError):
    """No endpoint answers at an address, or the connection broke before an answer's end.

    Attributes
    ----------
    connected
        Whether there was a connection, so that the request may have begun.
    completion
        What had arrived of the answer (a `mtplx_kernel.client.Completion`), or None.
    """

    def __init__(self, message: str, *, connected: bool, completion: object | None = None) -> None:
        super().__init__(message)
        self.connected = connected
        self.completion = completion
