"""What a client sends: its settings, checked, and the calls that they and a prompt make."""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from mtplx_kernel.errors import InvalidRequest

ConcurrencyMode = Literal["mtp", "ar", "hyper"]
Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]

MODES = ("mtp", "ar", "hyper")
BY_THE_CLIENT = ("messages", "prompt", "stream")
"""The fields of a request that are not options: the method and its prompt decide them."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request.

    Attributes
    ----------
    body
        The object that is sent; None for none.
    mode_unasked
        Whether its generation mode is the client's, not the caller's.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    mode_unasked: bool = False

    @property
    def content(self) -> bytes | None:
        """The body's bytes.

        Raises
        ------
        InvalidRequest
            If an option is nothing that JSON can hold.
        """
        if self.body is None:
            return None
        try:
            return json.dumps(self.body, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the request cannot be written as JSON: {error}") from error

    def of_model(self, name: str) -> Self:
        """The same call to a model."""
        return replace(self, body={**(self.body or {}), "model": name})


MODELS = Call("GET", "/v1/models")
STATUS = Call("GET", "/status")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a client was made with.

    Raises
    ------
    InvalidRequest
        At construction, for a value that cannot be used.
    """

    base_url: str
    model: str | None
    concurrency_mode: ConcurrencyMode | None
    max_batch_size: int
    token: str | None = field(repr=False)
    timeout: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", _root(self.base_url))
        if self.model is not None and not (isinstance(self.model, str) and self.model):
            raise InvalidRequest(f"model must be a name, or None, not {self.model!r}")
        if self.concurrency_mode is not None and self.concurrency_mode not in MODES:
            raise InvalidRequest(
                f"concurrency_mode must be one of {', '.join(MODES)}, or None, "
                f"not {self.concurrency_mode!r}"
            )
        size = self.max_batch_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidRequest(f"max_batch_size must be a whole number, 1 or more, not {size!r}")
        if self.token is not None and not _fits_a_header(self.token):
            raise InvalidRequest("token must be printable ASCII characters without spaces, or None")
        if self.timeout is not None and not _positive(self.timeout):
            raise InvalidRequest(f"timeout must be seconds above 0, or None, not {self.timeout!r}")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every call."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @property
    def description(self) -> str:
        """Where and how it asks, in a few words; the token is not among them."""
        mode = self.concurrency_mode or "unset"
        return f"{self.base_url}: mode {mode}, model {self.model or 'as served'}"

    @property
    def local(self) -> bool:
        """Whether the endpoint is on this machine, where no proxy leads."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def call(self, prompt: Prompt, options: Mapping[str, Any], *, streamed: bool = False) -> Call:
        """What asks for an answer to a prompt.

        Parameters
        ----------
        prompt
            Text or token ids, to be continued as they stand, or messages, to be answered.
        options
            Fields of the request's body; those that are None are left out.

        Raises
        ------
        InvalidRequest
            If the prompt is of no such kind, or an option cannot be had.
        """
        check_options(options)
        chat = _is_chat(prompt)
        body: dict[str, Any] = {
            "messages" if chat else "prompt": prompt if isinstance(prompt, str) else list(prompt)
        }
        if self.model is not None:
            body["model"] = self.model
        if self.concurrency_mode in {"mtp", "ar"}:
            body["generation_mode"] = self.concurrency_mode
        if streamed:
            if options.get("n", 1) != 1:
                raise InvalidRequest("a stream is the text of one answer: n must be 1")
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {name: value for name, value in options.items() if value is not None}
        lane = "/v1/hyper" if self.concurrency_mode == "hyper" else "/v1"
        return Call(
            "POST",
            f"{lane}/{'chat/completions' if chat else 'completions'}",
            body,
            mode_unasked=options.get("generation_mode") is None and "generation_mode" in body,
        )


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest where an option is no option: the methods decide those fields."""
    taken = next((name for name in BY_THE_CLIENT if name in options), None)
    if taken is not None:
        raise InvalidRequest(f"{taken} is no option: generate, stream and chat say it")


def conversation(messages: str | Sequence[Message], system: str | None) -> list[Message]:
    """Messages to be answered; text becomes one of the user's."""
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not _is_chat(turns):
        raise InvalidRequest("chat takes text or a list of messages with role and content")
    return [*turns] if system is None else [{"role": "system", "content": system}, *turns]


def _is_chat(prompt: object) -> bool:
    """Whether a prompt is a list of messages; InvalidRequest where it is no prompt at all."""
    if isinstance(prompt, str):
        return False
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes) and prompt:
        if all(isinstance(item, Mapping) for item in prompt):
            return True
        if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
            return False
        if all(isinstance(item, str) for item in prompt):
            raise InvalidRequest("a list of texts is several prompts: batch_generate takes them")
    raise InvalidRequest(
        "a prompt must be text, a list of messages or a list of token ids, and not empty, "
        f"not {prompt!r:.80}"
    )


def _root(base_url: object) -> str:
    """The address without a /v1 at its end, which some write and some do not."""
    wrong = InvalidRequest(
        f"base_url must be an address such as http://127.0.0.1:8000/v1, not {base_url!r:.80}"
    )
    if not isinstance(base_url, str):
        raise wrong
    try:
        parts = urlsplit(base_url.strip())
        parts.port  # noqa: B018  # a number that is none raises here
    except ValueError:
        raise wrong from None
    if parts.username is not None:
        raise InvalidRequest("base_url must hold no user name and no password: see token")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise wrong
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _fits_a_header(token: object) -> bool:
    if not isinstance(token, str) or not token:
        return False
    return token.isascii() and token.isprintable() and " " not in token


def _positive(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    return 0 < number < math.inf
