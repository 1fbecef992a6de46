"""Whose names an endpoint goes by, and which pages may ask it: the answer to DNS rebinding.

A page of any site can have its own name point at this machine and ask what listens here as if it
were that site. The browser then says so: in the Host header of every request, and in Origin.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection

from mtplx_kernel.server.settings import ANY_ORIGIN

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([^\[\]@/]+)\]|([^:\[\]@/]+))(?::\d{1,5})?")


def is_wildcard(host: str) -> bool:
    """Whether an address stands for all of the machine's."""
    address = _address(host)
    return address is not None and address.is_unspecified


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


class Names:
    """The names that a Host header may have.

    The loopback's and the one that is listened on. Where that is every address, it may be any
    address, which no site can take for its own, and the machine's name.

    Parameters
    ----------
    host
        What is listened on.
    """

    def __init__(self, host: str) -> None:
        self._wildcard = is_wildcard(host)
        own = socket.gethostname() if self._wildcard else host
        self._known = LOOPBACK | {own.lower()}

    def __contains__(self, header: str) -> bool:
        found = _HOST.fullmatch(header)
        if found is None:
            return False
        name = (found[1] or found[2]).lower().removesuffix(".")
        return name in self._known or (self._wildcard and _address(name) is not None)


def may_ask(origin: str, host: str, listed: Collection[str]) -> bool:
    """Whether pages of an origin may ask: the endpoint's own, and those that are listed.

    Parameters
    ----------
    host
        The request's Host header, which was checked.
    """
    return origin.lower() == f"http://{host}".lower() or is_listed(origin, listed)


def is_listed(origin: str, listed: Collection[str]) -> bool:
    """Whether an origin is among those that were listed, or any is."""
    return ANY_ORIGIN in listed or origin.lower() in {each.lower() for each in listed}


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
