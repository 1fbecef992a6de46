"""Which names and origins are the endpoint's own: no site may take it for one of its pages."""

from __future__ import annotations

import socket

import pytest

from mtplx_kernel.server.hosts import Names, is_loopback, may_ask


@pytest.mark.parametrize(
    "header",
    ["localhost", "localhost:80", "LOCALHOST:9", "localhost.", "127.0.0.1:65535", "[::1]:1"],
)
def test_the_loopback_has_its_names(header: str) -> None:
    assert header in Names("127.0.0.1")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "127.0.0.1@evil.example",
        "evil.example@localhost",
        "localhost:80:80",
        "localhost:",
        "::1",
        "[::1",
        "10.0.0.7",
        "127.0.0.1, evil.example",
    ],
)
def test_other_names_are_not_the_loopbacks(header: str) -> None:
    assert header not in Names("127.0.0.1")


def test_what_is_listened_on_is_a_name() -> None:
    assert "10.0.0.7:8000" in Names("10.0.0.7")
    assert "10.0.0.8:8000" not in Names("10.0.0.7")
    assert "Box.Example:8000" in Names("box.example")


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_on_all_addresses_any_address_is_a_name_and_no_sites_is(everywhere: str) -> None:
    names = Names(everywhere)
    assert "10.0.0.7:8000" in names
    assert "[fe80::1]:8000" in names
    assert socket.gethostname() in names
    assert "evil.example" not in names


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.7", False),
        ("box.example", False),
    ],
)
def test_the_loopback_is_told_from_what_others_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("origin", "listed", "expected"),
    [
        ("http://localhost:8000", (), True),  # the endpoint's own pages
        ("http://localhost:8001", (), False),
        ("https://localhost:8000", (), False),
        ("http://evil.example", (), False),
        ("null", (), False),
        ("http://app.example", ("http://app.example",), True),
        ("HTTP://APP.example", ("http://app.EXAMPLE",), True),
        ("http://app.example.evil", ("http://app.example",), False),
        ("http://app.example:81", ("http://app.example",), False),
        ("null", ("*",), True),
    ],
)
def test_only_own_and_listed_origins_may_ask(
    origin: str, listed: tuple[str, ...], expected: bool
) -> None:
    assert may_ask(origin, "localhost:8000", listed) is expected
