"""The socket that an endpoint listens on, bound before anything is started."""

from __future__ import annotations

import errno
import socket

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.server.hosts import is_wildcard

BACKLOG = 256
NO_SUCH_ADDRESS = "host must be an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections, which wait until someone accepts them.

    Raises
    ------
    InvalidRequest
        If the address is not this machine's, or the port is in use or not to be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"{NO_SUCH_ADDRESS}, not {host!r} ({error})") from None
    # A name may have addresses of both kinds: clients that know no IPv6 are many.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        # Connections that ended a moment ago do not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidRequest(_why_not(host, port, error)) from None
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(host: str, port: int) -> str:
    """How a client of this machine reaches it."""
    if is_wildcard(host):
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another, or 0 for any that is free"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} is not to be had by this user: take one above 1023, or 0 for any"
    return f"{NO_SUCH_ADDRESS}, not {host!r} ({error.strerror})"
