"""What an endpoint is opened with: its address, its token, and the limits that protect it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from mtplx_kernel.errors import InvalidRequest

HOST = "127.0.0.1"
ANY_ORIGIN = "*"
LONGEST_TOKEN = 512
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", re.IGNORECASE)
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an endpoint listens and whom it answers. Its repr shows no token.

    Attributes
    ----------
    host
        The address or name to listen on; "0.0.0.0" and "::" are all of the machine's.
    port
        0 takes any that is free.
    token
        What clients must send as ``Authorization: Bearer TOKEN``; None asks for none.
    cors
        Origins whose pages may ask, such as ``http://localhost:3000``; "*" is any.
    body_limit, header_limit
        Most bytes of a request's body, and of its first line with its headers.
    connection_limit
        Most connections at once. It is more than the engine's queue holds, so that a full queue is
        what clients meet first.
    header_timeout_s, body_timeout_s
        Seconds in which a request's headers, and then its body, must have come.
    stall_timeout_s
        Seconds that an answer may wait for a client that reads nothing of it.

    Raises
    ------
    InvalidRequest
        If one of them is of no use.
    """

    host: str = HOST
    port: int = 0
    token: str | None = field(default=None, repr=False)
    cors: tuple[str, ...] = ()
    body_limit: int = 8_000_000
    header_limit: int = 16_384
    connection_limit: int = 512
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    stall_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host.strip():
            raise InvalidRequest(f"host must be an address or a name, not {self.host!r}")
        if not _whole(self.port) or not 0 <= self.port <= 65_535:
            raise InvalidRequest(f"port must be 0 to 65535 (0 for any free one), not {self.port!r}")
        if self.token is not None:
            _check_token(self.token)
        if not isinstance(self.cors, tuple):
            raise InvalidRequest(f"cors must be a list of origins, not {self.cors!r}")
        for origin in self.cors:
            _check_origin(origin)
        for name in ("body_limit", "header_limit", "connection_limit"):
            value = getattr(self, name)
            if not _whole(value) or value < 1:
                raise InvalidRequest(f"{name} must be a whole number of at least 1, not {value!r}")
        for name in ("header_timeout_s", "body_timeout_s", "stall_timeout_s"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise InvalidRequest(f"{name} must be seconds, more than 0, not {value!r}")


def _check_token(token: object) -> None:
    """Raise InvalidRequest, without the token in it, unless a header can carry it."""
    if not isinstance(token, str):
        raise InvalidRequest(
            "token must be a text, None to have one drawn, or False to ask for none, "
            f"not {type(token).__name__}"
        )
    if len(token) > LONGEST_TOKEN or not _TOKEN.fullmatch(token):
        raise InvalidRequest(
            f"token must be 1 to {LONGEST_TOKEN} visible ASCII characters without spaces"
        )


def _check_origin(origin: object) -> None:
    if origin == ANY_ORIGIN or (isinstance(origin, str) and _ORIGIN.fullmatch(origin)):
        return
    raise InvalidRequest(
        f"cors takes origins such as http://localhost:3000, without a path, or *, not {origin!r}"
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
